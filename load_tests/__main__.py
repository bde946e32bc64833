"""The command line: `python -m load_tests COMMAND`."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Protocol

from engine.errors import ServeError

# command -> what it does
COMMANDS = {
    "calibrate": "measure how long steps take on this machine, for the simulator",
    "http": "send requests to a server at given times and measure what its clients see",
    "cpu_peers": "compare the engine with transformers on the CPU: same work, one thread",
    "cpu_kernels": "time the operations of decode steps and of prefill chunks on the CPU",
    "whatif": "replay a trace on other settings in virtual time: latencies, waste, replicas, knobs",
    "validate": "predict this machine under load with the simulator, then load it, and compare",
    "figures": "repeat the paper's evaluation in virtual time or on the engine, beside its numbers",
    "modern": "the paper's systems on workloads of today, in virtual time: rates within a level",
    "kernels": "race our GPU kernels against the best known ones, as shares of the card's limits",
    "sums": "time sums over GPUs and the norm behind them, by our kernels and by NCCL",
    "lengths": "condense recorded pairs of lengths into a small table to draw from",
    "scheduler": "time the scheduler for a full batch in the steady state",
    "offline": "run a thousand requests at once, in process, beside a peer: tokens per second",
    "online": "serve Poisson arrivals in process, beside a peer: latencies",
    "beam": "run many beam searches at once, in process, beside a peer: tokens per second",
    "peers": "`offline`, `online` and `beam` with one start of each system",
    "deterministic": "compare bits one by one, in batches and after preemptions; time the mode",
    "prompts": "time prompts of many steps in process: by the tokens of a step, and beside others",
    "step": "time single steps in process: decodes by batch and context, and mixed steps",
    "serving": "race our server and a peer's over HTTP on one card: latencies, tokens, CPU seconds",
    "path": "serve without a model: CPU time of each process for a token's way to its client",
    "neighbours": "send large and odd requests beside good streams, and watch what these notice",
    "rejects": "send bad requests, by themselves and beside good streams: cost, what these notice",
    "swap": "time moves of blocks to the swap space and back, and the steps beside them",
    "chats": "chats whose prefixes the KV cache lost: from the swap space, or prefilled again",
    "preemption": "swap preempted requests or prefill them again, by block size",
    "grammars": "compile JSON schemas of a public suite and follow its texts, by two libraries",
    "startup": "time the start and the end of `serve run`, and weigh its processes",
    "overload": "send more than a server can do, by two API keys, and see what it promises then",
    "readers": "leave answers unread or go away, beside good streams: what a server holds then",
    "faults": "kill and freeze processes of a server under load, and look at every answer",
    "monitor": "load a server beside a real Prometheus, and compare what both have seen",
    "alerts": "do faults to a server and have a real Prometheus notice each by its alert",
    "counters": "kill one of several replicas; no counter goes back for a real Prometheus",
    "page": "look at the page /ui with 0 and with 8 viewers by turns, and time the steps",
    "collector": "kill a collector of traces by turns, and time the requests beside it",
    "cost": "serve a load from two checkouts by turns: throughput, latency, CPU time",
}
# command -> its module, or an object of one; only the one that is asked for is imported
MODULES = {
    "calibrate": "load_tests.simulator.calibrate.calibration",
    "http": "load_tests.http.load",
    "cpu_peers": "load_tests.bench.peers.cpu_peers",
    "cpu_kernels": "load_tests.bench.kernels.cpu",
    "whatif": "load_tests.whatif.questions",
    "validate": "load_tests.whatif.validate",
    "figures": "load_tests.paper.figures_command",
    "modern": "load_tests.whatif.modern",
    "kernels": "load_tests.bench.kernels.parts",
    "sums": "load_tests.bench.kernels.sums",
    "lengths": "load_tests.traffic.condense",
    "scheduler": "load_tests.bench.in_process.scheduler",
    "offline": "load_tests.bench.peers.commands:OFFLINE",
    "online": "load_tests.bench.peers.commands:ONLINE",
    "beam": "load_tests.bench.peers.commands:BEAM",
    "peers": "load_tests.bench.peers.commands:PEERS",
    "deterministic": "load_tests.bench.in_process.deterministic",
    "prompts": "load_tests.bench.in_process.long_prompts",
    "step": "load_tests.bench.in_process.step",
    "serving": "load_tests.bench.serving.command",
    "path": "load_tests.path.command",
    "neighbours": "load_tests.bench.neighbours.command",
    "rejects": "load_tests.bench.neighbours.rejects",
    "swap": "load_tests.bench.in_process.swap",
    "chats": "load_tests.bench.in_process.chats",
    "preemption": "load_tests.bench.in_process.preemption",
    "grammars": "load_tests.bench.grammars.command",
    "startup": "load_tests.bench.startup.lives",
    "overload": "load_tests.overload.command",
    "readers": "load_tests.overload.readers",
    "faults": "load_tests.faults.command",
    "monitor": "load_tests.monitoring.command",
    "alerts": "load_tests.monitoring.alerts",
    "counters": "load_tests.monitoring.counters",
    "page": "load_tests.monitoring.page_cost",
    "collector": "load_tests.monitoring.dead_collector",
    "cost": "load_tests.faults.cost",
}


class CommandModule(Protocol):
    """What a member of `COMMANDS` offers.

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
    command, what = load_command(MODULES[name]), COMMANDS[name]
    parser = argparse.ArgumentParser(
        prog=f"python -m load_tests {name}",
        description=f"{what[0].upper()}{what[1:]}.",
        epilog=f"example:\n  {command.EXAMPLE}",
        formatter_class=_HelpFormatter,
    )
    command.add_arguments(parser)
    args = parser.parse_args(words[1:])
    try:
        return command.run(args)
    except (ValueError, OSError, ServeError) as error:
        parser.error(str(error))


def load_command(name: str) -> CommandModule:
    """Import a module, or an object of one: `module:object`."""
    module, _, member = name.partition(":")
    command: CommandModule = importlib.import_module(module)
    return getattr(command, member) if member else command


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
        epilog=f"commands:\n{names}\n\n`python -m load_tests COMMAND --help` has the rest.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    return parser


if __name__ == "__main__":
    sys.exit(main())
