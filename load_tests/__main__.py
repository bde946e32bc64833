"""The command line: `python -m load_tests COMMAND`."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Protocol

from engine.errors import ServeError

# one module per command; only the one that is asked for is imported
COMMANDS = {
    "calibrate": "measure how long steps take on this machine, for the simulator",
    "http": "send requests to a server at given times and measure what its clients see",
    "cpu_peers": "compare the engine with transformers on the CPU: same work, one thread",
    "whatif": "replay a trace on other settings in virtual time: latencies, waste, replicas, knobs",
    "validate": "predict this machine under load with the simulator, then load it, and compare",
    "figures": "repeat the paper's evaluation in virtual time or on the engine, beside its numbers",
    "modern": "the paper's systems on workloads of today, in virtual time: rates within a level",
    "kernels": "race our GPU kernels against the best known ones, as shares of the card's limits",
    "lengths": "condense recorded pairs of lengths into a small table to draw from",
    "scheduler": "time the scheduler for a full batch in the steady state",
    "offline": "run a thousand requests at once, in process, beside a peer: tokens per second",
    "online": "serve Poisson arrivals in process, beside a peer: latencies",
    "beam": "run many beam searches at once, in process, beside a peer: tokens per second",
    "deterministic": "compare bits alone, in batches and after preemptions; time the mode",
    "all_beside": "`offline`, `online` and `beam` with one start of each side",
    "step": "time single steps in process: decodes by batch and context, and mixed steps",
    "startup": "time the start and the end of `serve run`, and weigh its processes",
}
# commands that are one module of a package; each other one is a module or a package here
MODULES = {
    "figures": "paper.figures_command",
    "validate": "whatif.validate",
    "modern": "whatif.modern",
    "offline": "in_process.offline",
    "online": "in_process.online",
    "beam": "in_process.beam",
    "deterministic": "in_process.deterministic",
    "all_beside": "in_process.all_beside",
    "step": "in_process.step",
}


class Command(Protocol):
    """What a module of `COMMANDS` offers.

    Attributes:
        EXAMPLE: a command line that works, shown at the end of --help.
    """

    EXAMPLE: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's options."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Do it and return the exit status: 0 done, 1 measured but not valid."""
        ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the words after the program's name; None takes the process's own.

    Returns:
        The exit status: 0 done, 1 measured but not valid, 2 wrong use.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    name = next((word for word in words if not word.startswith("-")), "")
    if name not in COMMANDS or words[0] != name:
        _overview().parse_args(words)
        return 2
    command: Command = importlib.import_module(f"load_tests.{MODULES.get(name, name)}")
    parser = argparse.ArgumentParser(
        prog=f"python -m load_tests {name}",
        description=f"{COMMANDS[name][0].upper()}{COMMANDS[name][1:]}.",
        epilog=f"example:\n  {command.EXAMPLE}",
        formatter_class=_HelpFormatter,
    )
    command.add_arguments(parser)
    args = parser.parse_args(words[1:])
    try:
        return command.run(args)
    except (ValueError, OSError, ServeError) as error:
        parser.error(str(error))


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults as they would be typed, and the example as it is written."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.nargs == 0 or action.default in (None, "", []):
            return action.help
        if isinstance(action.default, list):
            return f"{action.help} (default: {','.join(map(str, action.default))})"
        return super()._get_help_string(action)


def _overview() -> argparse.ArgumentParser:
    names = "\n".join(f"  {name:14}{what}" for name, what in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m load_tests",
        description="Benchmarks and load generators.",
        epilog=f"commands:\n{names}\n\n`python -m load_tests COMMAND --help` tells the rest.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    return parser


if __name__ == "__main__":
    sys.exit(main())
