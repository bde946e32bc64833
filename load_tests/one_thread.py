"""One thread for commands that compare or predict what a CPU does."""

import os
import sys


def with_one_thread() -> None:
    """Start again with one OpenMP thread: libraries read the number when they are loaded."""
    if os.environ.get("OMP_NUM_THREADS") != "1":
        command = [sys.executable, "-m", "load_tests", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | {"OMP_NUM_THREADS": "1"})
