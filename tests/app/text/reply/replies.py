"""Replies of each format, and what they are made of."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.text.reply.formats import FORMATS, ReplyFormat
from app.text.reply.parts import ReplyPart

TOOLS = frozenset(("get_weather", "write_file", "now"))


@dataclass(frozen=True)
class Recorded:
    format: str
    text: str
    parts: list[dict[str, Any]]
    thinks: bool = False
    is_thinking: bool = False

    @property
    def style(self) -> ReplyFormat:
        return ReplyFormat(
            calls=FORMATS[self.format],
            tools=TOOLS,
            thinks=self.thinks,
            is_thinking=self.is_thinking,
        )


def recorded() -> list[Recorded]:
    folder = Path(__file__).parent / "recorded"
    return [
        Recorded(format=path.stem, **reply)
        for path in sorted(folder.glob("*.json"))
        for reply in json.loads(path.read_text("utf-8"))
    ]


def parsed(style: ReplyFormat, pieces: Sequence[str]) -> list[ReplyPart]:
    """Return the parts of a reply that comes in pieces, each part whole, with ids in order."""
    parser = style.parser()
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
    numbers = itertools.count()
    return [
        part if part.id is None else replace(part, id=str(next(numbers))) for part in _joined(parts)
    ]


def described(parts: Sequence[ReplyPart]) -> list[dict[str, Any]]:
    """Return parts as the recorded files have them."""
    return [
        {"call": part.name, "arguments": json.loads(part.text)}
        if part.kind == "call"
        else {part.kind: part.text}
        for part in parts
    ]


def _joined(parts: Sequence[ReplyPart]) -> list[ReplyPart]:
    joined: list[ReplyPart] = []
    for part in parts:
        last = joined[-1] if joined else None
        if part.name is None and last and (last.kind, last.number) == (part.kind, part.number):
            joined[-1] = replace(last, text=last.text + part.text)
        else:
            joined.append(part)
    return joined
