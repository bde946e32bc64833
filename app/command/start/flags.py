"""Flags of `pagoda serve`: one for each option of the application, made from its declaration."""

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from app.settings.config import parse_config
from app.settings.reference import GROUPS, all_options, default_of, kind_of, values_of
from app.settings.resolved_config import changed, yaml_value
from engine.errors import ConfigError

_PREFIX = "option:"
# as `vllm serve` reads them: 4k is 4000, 4K is 4096
_MULTIPLES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kmgKMG])")


def add_option_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each option, in the groups of docs/configuration.md."""
    options = all_options()
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        for name in names:
            _add_flag(group, name, options[name])
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="any option with a YAML value, such as limits.max_body_mib=8; flags overrule it",
    )


def _add_flag(group: Any, name: str, field: Any) -> None:
    flag = "--" + name.replace("_", "-")
    text = f"{_plain(field.description or '')} (default: {_plain(default_of(field))})"
    settings: dict[str, Any] = {"dest": _PREFIX + name, "default": None}
    kind = kind_of(field)
    if kind is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, help=text, **settings)
    elif get_origin(kind) is Literal:
        # checked with everything else, where the nearest choice is named
        choices = ",".join(map(str, get_args(kind)))
        group.add_argument(flag, metavar=f"{{{choices}}}", help=text, **settings)
    else:
        values = _plain(values_of(name, field))
        metavar = {str: "TEXT", Path: "PATH", int: "N", float: "X"}.get(kind, "YAML")
        text = text if metavar in ("TEXT", "PATH") else f"{text}; {values}"
        group.add_argument(flag, metavar=metavar, help=text, **settings)


def _plain(text: str) -> str:
    """Markdown as a terminal shows it, with % as argparse wants it."""
    return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text).replace("`", "").replace("%", "%%")


def given_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Options on the command line by name: those of --set, overruled by flags.

    Raises:
        ConfigError: naming what is no option or has no YAML value.
    """
    found: dict[str, Any] = {}
    for text in arguments.set:
        name, is_there, value = text.partition("=")
        if not is_there:
            raise ConfigError(f"--set {text}: write OPTION=VALUE, such as max_num_seqs=8")
        found[name] = _value(name, value)
    options = all_options()
    for key, value in vars(arguments).items():
        name = key.removeprefix(_PREFIX)
        if key != name and value is not None:
            is_text = kind_of(options[name]) in (str, Path) or isinstance(value, bool)
            found[name] = value if is_text else _value(name, value)
    return found


def _value(name: str, text: str) -> Any:
    if match := _NUMBER.fullmatch(text):
        number = float(match[1]) * _MULTIPLES[match[2]]
        return int(number) if number == int(number) else number
    return yaml_value(name, text)


def with_options(args: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The `args` of an application with options replaced, checked.

    Raises:
        ConfigError: naming what is no option, or has a bad value.
    """
    for name, value in options.items():
        args = changed(args, name.split("."), value)
    parse_config(args)
    return args
