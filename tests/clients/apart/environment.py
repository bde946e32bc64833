"""The environment of these clients, which `make test-clients` makes inside of ours.

It finds our packages behind its own, so torch is not installed again.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

PROGRAMS = Path(sys.prefix) / "clients" / "bin"
# what generators of load send; lengths in tokens, such that a busy machine keeps up
RATE_PER_S, SECONDS = 5, 60
PROMPT_LEN, OUTPUT_LEN = 16, 8


def run_apart(command: Sequence[str], folder: Path, limit_s: float) -> str:
    """Run a program of that environment; returns what it prints.

    Args:
        command: the program's name, and its arguments.
        folder: where it runs, and what it takes for its user's home.
    """
    program = PROGRAMS / command[0]
    if not program.exists():
        pytest.skip(f"{program} is not installed: make test-clients")
    done = subprocess.run(
        [str(program), *command[1:]],
        cwd=folder,
        env=_environment(folder),
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


def _environment(folder: Path) -> dict[str, str]:
    """Nothing of the user's: no keys and no settings."""
    return {
        "HOME": str(folder),
        "PATH": f"{PROGRAMS}:/usr/bin:/bin",
        "OPENAI_API_KEY": "none",
        "NO_PROXY": "*",
    }
