"""From the body of another API to the chat that it is, and back to its own names of fields."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from app.protocol.chat_request import ChatRequest
from app.protocol.parsing import parse_request
from engine.errors import RequestError


class Translatable(Protocol):
    """A body that is a chat in other words."""

    def as_chat(self) -> dict[str, Any]:
        """Return the body of the chat."""
        ...

    def names(self) -> Mapping[str, str]:
        """Return a field of the chat -> that of this body, where they differ; see `own_names`."""
        ...


def as_chat_request(body: Translatable) -> ChatRequest:
    """Return the chat that a body is.

    Raises:
        InvalidRequest: naming a field of the chat.
    """
    request, _ = parse_request(ChatRequest, body.as_chat(), "reject")
    return request


def names_of_members(places: Sequence[str], num_tools: int) -> dict[str, str]:
    """Return the messages of a chat, their contents and its tools -> where they are in the body.

    Args:
        places: of the messages' contents.
    """
    names = {f"tools[{index}]": f"tools[{index}]" for index in range(num_tools)}
    for index, place in enumerate(places):
        names[f"messages[{index}].content"] = place
        names[f"messages[{index}]"] = place.removesuffix(".content")
    return names


@contextmanager
def own_names(names: Mapping[str, str]) -> Iterator[None]:
    """Let errors of a chat name the fields of the body that it was made of.

    Args:
        names: a field of the chat -> that of the body. What is inside a field keeps its place
            there, but for members of lists, which may have been put together in another way.
    """
    try:
        yield
    except RequestError as error:
        _rename(error, names)
        raise


def _rename(error: RequestError, names: Mapping[str, str]) -> None:
    """Change `param` and the text of an error, IN PLACE."""
    param = error.param
    for name in sorted(names, key=len, reverse=True):
        if param is None or not param.startswith(name):
            continue
        rest = param[len(name) :]
        if rest and rest[0] not in ".[":
            continue
        error.param = names[name] + ("" if name.endswith("]") else rest)
        error.args = (str(error).replace(param, error.param, 1),)
        return
