"""Where models are kept on this machine."""

import os
from pathlib import Path


def default_cache() -> Path:
    """Return $XDG_CACHE_HOME/pagoda, or ~/.cache/pagoda where the variable is not set."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pagoda"
