"""Where text that goes on can be taken at once, by whatever brings it, without waking a task."""

from typing import Protocol

from app.text.choice_text import TextDelta


class Outlet(Protocol):
    """Takes what is new of choices that have begun and go on; everything else is not for it.

    Attributes:
        takes_text: whether plain text is all that it needs to know.
    """

    @property
    def takes_text(self) -> bool: ...

    def may_take(self) -> bool:
        """Whether it can take something now."""
        ...

    def take_text(self, index: int, text: str, num_tokens: int) -> None:
        """Take the new text of a choice.

        Args:
            num_tokens: that have come with it; none as long as there is no text.
        """
        ...

    def take(self, index: int, delta: TextDelta) -> None:
        """Take what is new of a choice."""
        ...
