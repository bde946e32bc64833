"""What a request keeps of a prompt that may be longer than it wants."""

from dataclasses import dataclass
from typing import TypeVar

from engine.types import IntColumn

SequenceT = TypeVar("SequenceT", IntColumn, tuple[str, ...])


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What is kept of a prompt.

    Attributes:
        num_tokens: at most; None for all.
        from_left: cut the beginning off, not the end.
    """

    num_tokens: int | None = None
    from_left: bool = True

    def apply(self, parts: SequenceT) -> SequenceT:
        """Return what is kept of tokens, or of something that there is one of for each token."""
        if self.num_tokens is None or len(parts) <= self.num_tokens:
            return parts
        kept = slice(-self.num_tokens, None) if self.from_left else slice(self.num_tokens)
        return parts[kept]


WHOLE = Cut()
