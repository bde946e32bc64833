"""Benchmarks and load generators: `python -m load_tests --help`."""
