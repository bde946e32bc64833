"""What the page may take, and what it says of the server."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions:
    """Settings of the page.

    Attributes:
        max_viewers: streams of numbers at once, of one ingress replica.
        max_hz: most frames in a second.
        facts: name -> value of what everybody may know of the server.
        settings: (option, its value as JSON, whether it is the default), for operators.
    """

    max_viewers: int = 8
    max_hz: float = 5.0
    facts: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    settings: tuple[tuple[str, str, bool], ...] = ()
