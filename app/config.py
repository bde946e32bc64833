"""The application's configuration: `args` of serve_config.yaml, checked."""

import os
from pathlib import Path


def default_cache() -> Path:
    """Where models are kept: $XDG_CACHE_HOME/pagoda, else ~/.cache/pagoda."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pagoda"
