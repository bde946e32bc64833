"""Blocks of code in the documentation, and the commands in them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from tests import ROOT

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
# a block without a language whose first word is one of these is for a shell
_PROGRAMS = ("curl", "docker", "helm", "kubectl", "make", "pagoda", "python")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block.

    Attributes:
        page: relative path.
        language: as the fence names it; `shell` for commands.
        text: without the indentation that all its lines have.
    """

    page: str
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text.splitlines()[0][:40]}"


def blocks(language: str) -> list[Block]:
    """Return all blocks of a language in the pages that users read."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    return [block for page in sorted(pages) for block in _of(page) if block.language == language]


def _of(page: Path) -> Iterator[Block]:
    name = str(page.relative_to(ROOT))
    for match in _FENCE.finditer(page.read_text(encoding="utf-8")):
        text = dedent(match[3])
        is_shell = not match[2] and text.startswith(_PROGRAMS)
        yield Block(page=name, language="shell" if is_shell else match[2], text=text)


def commands(text: str) -> list[list[str]]:
    """Split a script into commands and these into words; comments are left out.

    Raises:
        ValueError: if a quotation has no end.
    """
    found, waiting = [], ""
    for line in text.splitlines():
        waiting += line
        if waiting.endswith("\\"):
            waiting = waiting[:-1]
            continue
        try:
            words = shlex.split(waiting, comments=True)
        except ValueError:
            # a quotation goes on in the next line
            waiting += "\n"
            continue
        found += [words] if words else []
        waiting = ""
    if waiting:
        raise ValueError(waiting)
    return found
