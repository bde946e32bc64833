"""Commands of `load_tests` in a process of their own, to their end."""

import os
import subprocess
import sys

from tests import ROOT


def run(*words: str, without: str = "") -> "subprocess.CompletedProcess[str]":
    """Args: without: name of a variable that the process is not to have."""
    env = os.environ | {"RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"}
    env.pop(without, None)
    return subprocess.run(
        [sys.executable, "-m", "load_tests", *words],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
