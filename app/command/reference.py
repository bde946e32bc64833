"""Writes the page about the command, docs/command.md, from its parser: see `make docs`."""

import argparse
import sys
from collections.abc import Iterator

from app.command.parser import COMMANDS, make_parser

_INTRODUCTION = """# The command `pagoda`

Generated from the code by `make docs`; do not edit it by hand.

`pagoda` is in the environment `.venv` after `make serve`; `pagoda COMMAND --help` says what is
here. Commands that ask a server find the latest one that `pagoda serve` has started for this user
on this machine; `--url` names another one. Without a terminal, or with `NO_COLOR`, output is plain
lines.

| exit code | meaning |
|---|---|
| 0 | done; of `serve`: ended by a signal |
| 1 | failed; the last line says why |
| 2 | wrong arguments |
| 3 | no server, or one that is not ready |
| 130 | ended by Ctrl-C; of `serve`: 128 + its number after another signal |
"""

_SERVE = """Every option of [configuration](configuration.md) has a flag: `max_num_seqs` is
`--max-num-seqs`, `limits.max_body_mib` is `--limits.max-body-mib`, and what is true or false has
`--no-` as well. A flag counts more than `--set option=value`, that more than the file, and that
more than the default. `4k` is 4000 and `4K` is 4096."""


def reference() -> str:
    """The whole page, in Markdown."""
    return "\n".join([_INTRODUCTION, *_commands(), ""])


def _commands() -> Iterator[str]:
    parsers = _children(make_parser())
    for name, (text, _) in COMMANDS.items():
        yield f"## {name}\n\n{text[0].upper()}{text[1:]}.\n"
        yield from _arguments(f"pagoda {name}", parsers[name])
        if name == "serve":
            yield f"{_SERVE}\n"


def _arguments(command: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    actions = [each for each in parser._actions if not _is_hidden(each)]
    positional = [each for each in actions if not each.option_strings]
    words = " ".join(_word(each) for each in positional if not each.choices or each.metavar)
    flags = " [options]" * (len(actions) > len(positional))
    children = _children(parser)
    if not children:
        yield f"`{command}{' ' * bool(words)}{words}{flags}`\n"
    rows = [f"| `{_name(each)}` | {_text(each)} |" for each in actions if not _is_action(each)]
    if rows:
        yield "\n".join(["| argument | meaning |", "|---|---|", *rows, ""])
    for name, child in children.items():
        yield from _arguments(f"{command} {name}", child)


def _children(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _is_action(action: argparse.Action) -> bool:
    return isinstance(action, argparse._SubParsersAction)


def _is_hidden(action: argparse.Action) -> bool:
    """Help is everywhere, and flags of options stand in docs/configuration.md."""
    return isinstance(action, argparse._HelpAction) or action.dest.startswith("option:")


def _word(action: argparse.Action) -> str:
    word = str(action.metavar or action.dest)
    return f"[{word}]" if action.nargs in ("?", "*") else word


def _name(action: argparse.Action) -> str:
    if not action.option_strings:
        return _word(action).replace("|", "\\|")
    flag = ", ".join(action.option_strings)
    if action.nargs == 0:
        return flag
    value = (
        "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    )
    return f"{flag} {action.metavar or value}"


def _text(action: argparse.Action) -> str:
    text = str(action.help or "") % {"default": action.default}
    if not action.option_strings and action.choices and not text:
        text = ", ".join(map(str, action.choices))
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.stdout.write(reference())
