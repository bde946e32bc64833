"""Command `whatif`: a trace on other settings, with the real scheduler in virtual time.

The commands `validate`, which checks it against this machine, and `modern` are modules beside it.
"""

from load_tests.whatif.command import EXAMPLE, add_arguments, run

__all__ = ["EXAMPLE", "add_arguments", "run"]
