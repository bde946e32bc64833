"""`pagoda doctor`: looks for what would make a server fail, or serve worse than it could."""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from app.command.environment import own_environment, serving_environment
from app.command.ports import check_ports
from app.command.start.display import PlainDisplay
from app.command.start.server_folder import running_folders
from app.command.tools.findings import Finding, environment, gpus, machine, of_config, worst
from app.settings.config import parse_config
from app.settings.serve_file import applications, http_address
from engine.errors import ConfigError

_MARKS = {"green": "✓", "yellow": "!", "red": "✗"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pagoda doctor`."""
    parser.description = (
        "Look for what would make a server fail or slow. Exit code 1 if anything is red."
    )
    parser.add_argument("config", nargs="?", type=Path, default=Path("serve_config.yaml"))
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--no-model", action="store_true", help="do not look at the model, which may be fetched"
    )


def run(arguments: argparse.Namespace) -> int:
    """Look, and show what was found; return the exit code."""
    findings = list(find(arguments.config, with_model=not arguments.no_model))
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(each) for each in findings], indent=2) + "\n")
    else:
        display = PlainDisplay(sys.stdout)
        for each in findings:
            display.say(f"{_MARKS[each.colour]} {each.id:<19} {each.text}")
            if each.fix:
                display.say(f"{'':22}{each.fix}")
    return int(worst(findings) == "red")


def find(path: Path, *, with_model: bool) -> Iterator[Finding]:
    """Look at everything.

    Args:
        path: of the configuration that is to be served.
    """
    variables = own_environment()
    try:
        parsed = [parse_config(args) for _, args in applications(path)]
        host, _ = http_address(path)
    except ConfigError as error:
        yield Finding(id="config", colour="red", text=str(error), fix=f"change {path}")
        return
    yield Finding(id="config", colour="green", text=f"{path} can be read")
    yield from machine(parsed[0].cache_folder.expanduser())
    yield from environment(variables)
    yield from gpus(sum(each.tensor_parallel_size for each in parsed if each.device == "cuda"))
    for config in parsed:
        yield from of_config(config, host)
    yield _ports(path)
    if with_model:
        yield _model(path)


def _ports(path: Path) -> Finding:
    try:
        check_ports(path, serving_environment(None, own_environment()), shown=path)
    except ConfigError as error:
        hint = "; `pagoda status` shows servers of this user" if running_folders() else ""
        return Finding(id="ports", colour="red", text=str(error), fix=f"free it{hint}")
    return Finding(id="ports", colour="green", text="the port is free")


def _model(path: Path) -> Finding:
    # models and conversions are slow to import
    from app.preflight import check_file

    try:
        check_file(path)
    except ConfigError as error:
        return Finding(id="model", colour="red", text=str(error), fix="see there")
    return Finding(id="model", colour="green", text="model and options fit this machine")
