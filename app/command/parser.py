"""The commands of `pagoda` and their arguments, each made only when it is asked for."""

import argparse
import importlib
from collections.abc import Mapping, Sequence

# command -> what it does, and the module with its `add_arguments` and `run`
COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": ("check a configuration or a model, and serve it", "app.command.serve"),
    "chat": ("talk to a model that is served", "app.command.client.chat"),
    "complete": ("complete a text, also one from a pipe", "app.command.client.complete"),
    "status": ("say whether servers run and are ready", "app.command.client.status"),
    "top": ("watch the load and the KV cache of a server", "app.command.client.top"),
    "logs": ("show the log of a server", "app.command.client.logs"),
    "stop": ("let a server's open requests end, then stop it", "app.command.client.stop"),
    "prefixes": ("list, pin and release pinned prefixes", "app.command.client.prefixes"),
    "doctor": ("look for what would make a server fail or slow", "app.command.tools.doctor"),
    "config": ("show, check and compare configurations", "app.command.tools.config"),
    "models": ("list, fetch, verify and remove models", "app.command.tools.models"),
    "bench": ("measure, with a checkout's load_tests", "app.command.tools.bench"),
    "calibrate": ("time steps for the simulator", "app.command.tools.calibrate"),
    "whatif": ("replay a trace with other settings", "app.command.tools.whatif"),
    "figures": ("repeat the paper's figures", "app.command.tools.figures"),
    "environment": ("print the environment for `ray start`", "app.command.environment"),
    "completion": ("print completions for a shell", "app.command.tools.completion"),
    "version": ("print versions", "app.command.tools.version"),
}
EXIT_CODES = (
    "Exit codes: 0 done, 1 failed, 2 wrong arguments, 3 no server or not ready, 130 Ctrl-C."
)


def make_parser(given: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The parser of the whole command line.

    Args:
        given: the words on it; only the command among them gets its arguments, as others would
            take time to import. None for all commands.
    """
    parser = argparse.ArgumentParser(
        prog="pagoda",
        description="Serves large language models on Ray Serve with a paged KV cache.",
        epilog=EXIT_CODES,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    asked = None if given is None else next((word for word in given if word in COMMANDS), "")
    for name, (text, module) in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if asked is None or name == asked:
            found = importlib.import_module(module)
            found.add_arguments(command)
            command.set_defaults(run=found.run)
    return parser
