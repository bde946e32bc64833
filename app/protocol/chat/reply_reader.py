"""Takes one choice of an answer apart while it comes, and counts what was reasoning."""

from app.text.choice_text import TextDelta
from app.text.reply.formats import ReplyFormat
from app.text.reply.parts import ReplyPart


class ReplyReader:
    """Parts of one choice.

    Attributes:
        num_calls: calls of tools so far.
    """

    def __init__(self, style: ReplyFormat) -> None:
        self._parser = style.parser()
        self._keeps_reasoning = style.keeps_reasoning
        self._num_tokens = 0
        self._num_characters = 0
        self.num_calls = 0

    def push(self, delta: TextDelta) -> list[ReplyPart]:
        """Add what is new of the choice; returns the parts that became known."""
        self._num_tokens += len(delta.token_ids)
        self._num_characters += len(delta.text)
        parts = self._parser.push(delta.text)
        if delta.finish_reason is not None:
            parts += self._parser.finish()
        self.num_calls += sum(part.name is not None for part in parts)
        if self._keeps_reasoning:
            return parts
        return [part for part in parts if part.kind != "reasoning"]

    @property
    def num_reasoning_tokens(self) -> int:
        """About how many tokens were reasoning: by its share of the characters."""
        if not self._num_characters:
            return 0
        return round(self._num_tokens * self._parser.num_reasoning / self._num_characters)

    def finish_reason(self, delta: TextDelta) -> str | None:
        """Why the choice ended, as a chat has it."""
        called = delta.finish_reason == "stop" and self.num_calls
        return "tool_calls" if called else delta.finish_reason


def whole(parts: list[ReplyPart]) -> list[ReplyPart]:
    """Put the parts of each piece together."""
    joined: list[ReplyPart] = []
    for part in parts:
        last = joined[-1] if joined else None
        if part.name is None and last and (last.kind, last.number) == (part.kind, part.number):
            joined[-1] = last.with_text(last.text + part.text)
        else:
            joined.append(part)
    return joined
