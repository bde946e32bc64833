"""Prometheus's own tool, where it is installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed (Debian: apt-get install prometheus)"
)


def promtool(*arguments: str, folder: Path, text: bytes = b"") -> str:
    """Run a command of promtool in a folder; return what it says.

    Args:
        text: what it reads.
    """
    assert PROMTOOL is not None
    ended = subprocess.run(
        [PROMTOOL, *arguments], cwd=folder, input=text, capture_output=True, check=False
    )
    said = (ended.stdout + ended.stderr).decode()
    assert ended.returncode == 0, said
    return said
