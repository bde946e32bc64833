"""From the body of another API to the chat that it is."""

from typing import Any, Protocol

from app.protocol.chat_request import ChatRequest
from app.protocol.parsing import parse_request


class Translatable(Protocol):
    """A body that is a chat in other words."""

    def as_chat(self) -> dict[str, Any]:
        """Return the body of the chat."""
        ...


def as_chat_request(body: Translatable) -> ChatRequest:
    """Return the chat that a body is.

    Raises:
        InvalidRequest: naming a field of the chat.
    """
    request, _ = parse_request(ChatRequest, body.as_chat(), "reject")
    return request
