"""All texts of a JSON value at once, to be searched for what is most often in none of them."""

from typing import Any

import msgspec

# in front of a control character that is written by its number, and maybe of others
ESCAPED = b"\\u"


def json_of(value: Any) -> bytes | None:
    """Return a value as JSON, in which characters beyond ASCII stand as they are.

    None for a value that is no JSON, such as a text with half of a surrogate pair.
    """
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def stands_as_it_is(text: str) -> bool:
    """Whether JSON writes a text as it is: no quote, backslash or control character is in it."""
    return not any(character in '"\\' or character < " " for character in text)
