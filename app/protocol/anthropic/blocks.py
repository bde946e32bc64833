"""Blocks of a message as Anthropic's API has them, and the messages that they are in a chat."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, Tag

from app.limits import MAX_PARTS
from app.protocol.chat.tools import ToolName
from app.protocol.strict import JsonObject, Strict, either, fault

_MEDIA = ("image", "document", "search_result", "container_upload")
_CONTENT = "it must be text or a list of blocks"
_KINDS = ("text", "tool_use", "tool_result", "thinking", "redacted_thinking")


class Block(Strict):
    """What all blocks may have: a wish about caching, which is done in any case."""

    ignored: ClassVar[Collection[str]] = ("cache_control",)

    cache_control: JsonObject | None = None


class TextBlock(Block):
    """Text."""

    type: Literal["text"]
    text: str
    citations: Annotated[list[Any], Field(max_length=MAX_PARTS, fail_fast=True)] | None = None


class ToolUseBlock(Block):
    """A call of a tool."""

    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {"caller": ({"type": "direct"},)}

    type: Literal["tool_use"]
    id: str = Field(min_length=1, max_length=128)
    name: ToolName
    input: JsonObject


def _kind_of_text(content: Any) -> str | None:
    return (
        "<text>" if isinstance(content, str) else "<blocks>" if isinstance(content, list) else None
    )


def _refuse_media(block: Any) -> Any:
    if isinstance(block, dict) and block.get("type") in _MEDIA:
        raise fault("", "only text is supported", "unsupported_parameter")
    return block


_Texts = Annotated[
    list[Annotated[TextBlock, BeforeValidator(_refuse_media)]],
    Field(max_length=MAX_PARTS, fail_fast=True),
]
TextContent = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[_Texts, Tag("<blocks>")],
    either(_kind_of_text, _CONTENT),
]


class ToolResultBlock(Block):
    """What a tool answered."""

    type: Literal["tool_result"]
    tool_use_id: str = Field(min_length=1, max_length=128)
    content: TextContent = ""
    is_error: bool = False


class ThinkingBlock(Block):
    """What the model thought; it reaches templates that take it."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Block):
    """What another server's model thought; it says nothing here."""

    type: Literal["redacted_thinking"]
    data: str


def _kind_of_block(block: Any) -> str | None:
    kind = block.get("type") if isinstance(block, dict) else None
    return f"<{kind}>" if kind in _KINDS else None


_AnyBlock = Annotated[
    Annotated[TextBlock, Tag("<text>")]
    | Annotated[ToolUseBlock, Tag("<tool_use>")]
    | Annotated[ToolResultBlock, Tag("<tool_result>")]
    | Annotated[ThinkingBlock, Tag("<thinking>")]
    | Annotated[RedactedThinkingBlock, Tag("<redacted_thinking>")],
    either(_kind_of_block, f"its type must be one of {', '.join(_KINDS)}"),
    BeforeValidator(_refuse_media),
]


class AnthropicMessage(Strict):
    """One message of a conversation."""

    place: ClassVar[str] = "messages."

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        Annotated[str, Tag("<text>")]
        | Annotated[list[_AnyBlock], Field(max_length=MAX_PARTS, fail_fast=True), Tag("<blocks>")],
        either(_kind_of_text, _CONTENT),
    ]


def to_chat_messages(messages: Sequence[AnthropicMessage]) -> list[tuple[str, dict[str, Any]]]:
    """Return the messages of a chat, each with the place of its content in the body.

    Results of tools become messages of their own.
    """
    chat: list[tuple[str, dict[str, Any]]] = []
    for index, message in enumerate(messages):
        if isinstance(message.content, str):
            said = [{"role": message.role, "content": message.content}]
        elif message.role == "assistant":
            said = [_answer(message.content)]
        else:
            said = _question(message.role, message.content)
        chat += [(f"messages[{index}].content", one) for one in said]
    return chat


def text_of_blocks(content: str | Sequence[TextBlock]) -> str:
    """Return a content of text as one text."""
    return content if isinstance(content, str) else "".join(block.text for block in content)


def _answer(blocks: Sequence[Block]) -> dict[str, Any]:
    texts = [block.text for block in blocks if isinstance(block, TextBlock)]
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    calls = [
        {"id": block.id, "function": {"name": block.name, "arguments": block.input}}
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    return {
        "role": "assistant",
        "content": "".join(texts),
        "reasoning": "".join(thoughts) or None,
        "tool_calls": calls,
    }


def _question(role: str, blocks: Sequence[Block]) -> list[dict[str, Any]]:
    results = [
        {
            "role": "tool",
            "tool_call_id": block.tool_use_id,
            "content": ("Error: " if block.is_error else "") + text_of_blocks(block.content),
        }
        for block in blocks
        if isinstance(block, ToolResultBlock)
    ]
    texts = [block.text for block in blocks if isinstance(block, TextBlock)]
    said = [{"role": role, "content": "".join(texts)}] if texts or not results else []
    return results + said
