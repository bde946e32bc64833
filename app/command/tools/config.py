"""`pagoda config`: shows, checks and compares configurations without starting anything."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import yaml

from app.settings.config import AppConfig, parse_config
from app.settings.reference import all_options
from app.settings.serve_file import applications, read_file
from engine.errors import ConfigError

_DEFAULT = Path("serve_config.yaml")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pagoda config`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="every option with its value, and where that is from")
    show.add_argument("file", nargs="?", type=Path, default=_DEFAULT)
    show.add_argument("--changed", action="store_true", help="only what the file sets")
    check = actions.add_parser("check", help="check files, their models and this machine")
    check.add_argument("files", nargs="*", type=Path, default=[_DEFAULT])
    check.add_argument(
        "--no-weights", action="store_true", help="do not fetch weights that are elsewhere"
    )
    actions.add_parser("schema", help="JSON schema of `args`, for editors")
    diff = actions.add_parser("diff", help="options in which two files differ; exit code 1 if any")
    diff.add_argument("files", nargs=2, type=Path)
    vllm = actions.add_parser("from-vllm", help="turn the flags of `vllm serve` into a file")
    vllm.add_argument("--base", type=Path, default=_DEFAULT, help="file for everything else")
    vllm.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help="of `vllm serve`")


def run(arguments: argparse.Namespace) -> int:
    """Do what is asked with configurations; return the exit code."""
    try:
        return int(_ACTIONS[arguments.action](arguments))
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1


def _show(arguments: argparse.Namespace) -> int:
    for app, args in applications(arguments.file):
        config = parse_config(args)
        sys.stdout.write(f"# {arguments.file}, application {app}\n")
        for name in all_options():
            is_set = _is_set(args, name)
            if is_set or not arguments.changed:
                origin = "" if is_set else "  # default"
                sys.stdout.write(f"{name}: {json.dumps(_plain(config, name))}{origin}\n")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    # models and conversions are slow to import
    from app.preflight import check_file

    failed = 0
    for path in arguments.files:
        try:
            check_file(path, with_weights=not arguments.no_weights)
            sys.stdout.write(f"{path}: can be served\n")
        except ConfigError as error:
            failed = 1
            sys.stderr.write(f"error: {error}\n")
    return failed


def _schema(arguments: argparse.Namespace) -> int:
    sys.stdout.write(json.dumps(AppConfig.model_json_schema(), indent=2) + "\n")
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    first, second = (dict(applications(path)) for path in arguments.files)
    lines = [f"- application {name}" for name in first.keys() - second.keys()]
    lines += [f"+ application {name}" for name in second.keys() - first.keys()]
    for name in first.keys() & second.keys():
        old, new = parse_config(first[name]), parse_config(second[name])
        for option in all_options():
            values = _plain(old, option), _plain(new, option)
            if values[0] != values[1]:
                shown = " -> ".join(json.dumps(value) for value in values)
                lines.append(f"{name}.{option}: {shown}")
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return int(bool(lines))


def _from_vllm(arguments: argparse.Namespace) -> int:
    from app.command.tools.from_vllm import as_config, translate

    found = translate(arguments.words)
    content = as_config(found, read_file(arguments.base))
    yaml.safe_dump(content, sys.stdout, sort_keys=False, allow_unicode=True)
    for problem in found.problems:
        sys.stderr.write(f"warning: {problem}\n")
    return int(bool(found.problems))


def _is_set(args: Any, name: str) -> bool:
    for part in name.split("."):
        if not isinstance(args, dict) or part not in args:
            return False
        args = args[part]
    return True


def _plain(config: AppConfig, name: str) -> Any:
    """The value of an option as JSON has it."""
    value: Any = config.model_dump(mode="json")
    for part in name.split("."):
        value = value[part]
    return value


_ACTIONS = {
    "show": _show,
    "check": _check,
    "schema": _schema,
    "diff": _diff,
    "from-vllm": _from_vllm,
}
