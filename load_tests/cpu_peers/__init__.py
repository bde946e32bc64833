"""Command `cpu_peers`: the engine beside transformers on one CPU thread, with the same work."""

from load_tests.cpu_peers.command import EXAMPLE, add_arguments, run

__all__ = ["EXAMPLE", "add_arguments", "run"]
