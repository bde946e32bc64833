"""`pagoda version`: what is installed."""

import argparse
import platform
import sys
from importlib import metadata

_PACKAGES = ("ray", "torch", "transformers", "triton")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pagoda version`: none."""


def run(arguments: argparse.Namespace) -> int:
    """Print versions, one a line; return the exit code."""
    sys.stdout.write(f"pagoda {metadata.version('pagoda')}\npython {platform.python_version()}\n")
    for name in _PACKAGES:
        try:
            sys.stdout.write(f"{name} {metadata.version(name)}\n")
        except metadata.PackageNotFoundError:
            sys.stdout.write(f"{name} is not installed\n")
    return 0
