"""Benchmarks and load generators: `python -m load_tests --help`."""

from pathlib import Path

# where commands of the project are started
ROOT = Path(__file__).parents[1]
