"""What the tables say of a field."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.app.text.tokenizers import chatml_tokenizer

VOCAB = len(chatml_tokenizer().vocabulary)
INVALID, MISSING = "invalid_value", "missing_required_parameter"
UNKNOWN, UNSUPPORTED = "unknown_parameter", "unsupported_parameter"
TOO_LONG, MALFORMED = "context_length_exceeded", "invalid_json"

Kind = Literal["flag", "number", "text", "whole", "other"]

# values of other types, which are refused in any field of the kind
WRONG_TYPES: Mapping[Kind, Sequence[Any]] = {
    "flag": (0, 1, 1.0, "true", "", [], [True], {}),
    "number": ("", "1", True, False, [], [1], {}, {"a": 1}),
    "text": (0, 7, 1.5, True, [], ["a"], {}, {"a": 1}),
    "whole": ("", "1", True, False, 1.0, 1.5, [], [1], {}, {"a": 1}),
    "other": (),
}
# what is no JSON, in place of a value
NO_JSON: Mapping[Kind, Sequence[bytes]] = {
    "number": (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"1" * 5000, b"01", b"+1", b"."),
    "whole": (b"NaN", b"-Infinity", b"1" * 5000, b"1e", b"0x1"),
    "text": (b"'x'", b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xff\xfe"', b'"\xc0\xaf"', b'"\n"'),
    "flag": (b"True", b"yes"),
    "other": (),
}


@dataclass(frozen=True, slots=True)
class Wrong:
    """A value that is refused otherwise than by the name of its field as an invalid value.

    Attributes:
        place: in the field, written behind its name.
        param: the whole name, where another field is at fault; None for name and place.
    """

    value: Any
    place: str = ""
    code: str = INVALID
    param: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One field.

    Attributes:
        good: values that are served; the ends of its range among them.
        bad: values that are refused; see `Wrong`.
        kind: of the type, whose `WRONG_TYPES` are refused, too.
        beside: fields without which it means nothing.
        plain_only: good values that are refused in a stream.
        is_required: whether null, like its lack, is refused as missing.
        is_one_of_two: whether either it or another field must be given.
        is_idle: whether it is accepted without effect, and says so.
        is_unsupported: whether its bad values are refused as unsupported.
        reaches: attribute of the engine's sampling parameters that a good value becomes.
    """

    name: str
    good: Sequence[Any] = ()
    bad: Sequence[Any] = ()
    kind: Kind = "other"
    beside: Mapping[str, Any] = field(default_factory=dict)
    plain_only: Sequence[Any] = ()
    is_required: bool = False
    is_one_of_two: bool = False
    is_idle: bool = False
    is_unsupported: bool = False
    reaches: str | None = None

    def wrong(self) -> list[Wrong]:
        """All values that are refused."""
        code = UNSUPPORTED if self.is_unsupported else INVALID
        others = [Wrong(value) for value in WRONG_TYPES[self.kind]]
        own = [w if isinstance(w, Wrong) else Wrong(w, code=code) for w in self.bad]
        return own + others


def unknown(name: str, *values: Any) -> Row:
    """A field that there is not."""
    return Row(name=name, bad=[Wrong(value, code=UNKNOWN) for value in values])


def flag(name: str, **more: Any) -> Row:
    """A field that is true or false."""
    return Row(name=name, kind="flag", good=(True, False), **more)


def number(name: str, good: Sequence[Any], bad: Sequence[Any], **more: Any) -> Row:
    """A number within limits."""
    return Row(name=name, kind="number", good=good, bad=bad, **more)


def whole(name: str, good: Sequence[Any], bad: Sequence[Any], **more: Any) -> Row:
    """A whole number within limits."""
    return Row(name=name, kind="whole", good=good, bad=bad, **more)


def text(name: str, good: Sequence[Any], bad: Sequence[Any] = (), **more: Any) -> Row:
    """A text."""
    return Row(name=name, kind="text", good=good, bad=bad, **more)


def other(name: str, good: Sequence[Any], bad: Sequence[Any], **more: Any) -> Row:
    """A list, an object, or one of several types."""
    return Row(name=name, good=good, bad=bad, **more)


def idle(name: str, good: Sequence[Any], bad: Sequence[Any] = (), **more: Any) -> Row:
    """A field that is accepted without effect."""
    return Row(name=name, good=good, bad=bad, is_idle=True, **more)


def unsupported(name: str, *bad: Any, good: Sequence[Any] = ()) -> Row:
    """A field that is refused unless it asks for nothing."""
    return Row(name=name, good=(False, "", [], {}, *good), bad=bad, is_unsupported=True)
