"""Items of a conversation as /v1/responses has them, and the messages that they are in a chat."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, Tag

from app.limits import MAX_BODY_VALUES, MAX_PARTS
from app.protocol.chat.tools import ToolName
from app.protocol.strict import Strict, either, fault

_MEDIA = ("input_image", "input_file", "input_audio")
_CONTENT = "it must be text or a list of text parts"
_KINDS = ("message", "function_call", "function_call_output", "reasoning")


def _refuse_media(part: Any) -> Any:
    if isinstance(part, dict) and part.get("type") in _MEDIA:
        raise fault("", "only text parts are supported", "unsupported_parameter")
    return part


def _kind_of_content(content: Any) -> str | None:
    return (
        "<text>" if isinstance(content, str) else "<parts>" if isinstance(content, list) else None
    )


class ResponsePart(Strict):
    """A piece of text; what comes with that of an answer has no effect."""

    type: Literal["input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text"]
    text: str = ""
    refusal: str = ""
    annotations: Annotated[list[Any], Field(max_length=MAX_PARTS, fail_fast=True)] | None = None
    logprobs: Annotated[list[Any], Field(max_length=MAX_BODY_VALUES, fail_fast=True)] | None = None

    @property
    def said(self) -> str:
        return self.text or self.refusal


_Parts = Annotated[
    list[Annotated[ResponsePart, BeforeValidator(_refuse_media)]],
    Field(max_length=MAX_PARTS, fail_fast=True),
]
_Content = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[_Parts, Tag("<parts>")],
    either(_kind_of_content, _CONTENT),
]


class ResponseItem(Strict):
    """What all items may have: names that mean nothing to a server that stores none."""

    id: str | None = None
    status: str | None = None


class MessageItem(ResponseItem):
    """A message."""

    type: Literal["message"] = "message"
    role: Literal["developer", "system", "user", "assistant"]
    content: _Content
    phase: str | None = None


class FunctionCallItem(ResponseItem):
    """A call of a tool."""

    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {"namespace": (), "caller": ()}

    type: Literal["function_call"]
    call_id: str = Field(min_length=1, max_length=128)
    name: ToolName
    arguments: str


class FunctionOutputItem(ResponseItem):
    """What a tool answered."""

    type: Literal["function_call_output"]
    call_id: str = Field(min_length=1, max_length=128)
    output: _Content


class ReasoningItem(ResponseItem):
    """What the model thought; it reaches templates that take it."""

    type: Literal["reasoning"]
    summary: _Parts = Field([])
    content: _Parts = Field([])
    encrypted_content: str | None = None


def kind_of_item(item: Any) -> str | None:
    """Choose the class of an item."""
    if not isinstance(item, dict):
        return None
    kind = item.get("type", "message")
    return f"<{kind}>" if kind in _KINDS else None


AnyItem = Annotated[
    Annotated[MessageItem, Tag("<message>")]
    | Annotated[FunctionCallItem, Tag("<function_call>")]
    | Annotated[FunctionOutputItem, Tag("<function_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")],
    either(kind_of_item, f"its type must be one of {', '.join(_KINDS)}"),
]


def to_messages(items: Sequence[ResponseItem]) -> list[tuple[str, dict[str, Any]]]:
    """Return the messages of a chat, each with the place of its content in the body.

    What one answer was made of becomes one message, whose place is that of its first item.
    """
    messages: list[tuple[str, dict[str, Any]]] = []
    for index, item in enumerate(items):
        place = f"input[{index}]"
        if isinstance(item, FunctionOutputItem):
            message = {"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)}
            messages.append((f"{place}.output", message))
        elif isinstance(item, MessageItem) and item.role != "assistant":
            message = {"role": item.role, "content": _text(item.content)}
            messages.append((f"{place}.content", message))
        else:
            last = messages[-1][1] if messages else None
            if last is None or not _takes(last, item):
                last = {"role": "assistant", "content": ""}
                messages.append((place, last))
            _add(last, item)
    return messages


def _takes(last: dict[str, Any], item: ResponseItem) -> bool:
    """Whether an item goes on with the last message: reasoning, then text, then calls."""
    if last["role"] != "assistant":
        return False
    if isinstance(item, ReasoningItem):
        return not last["content"] and "tool_calls" not in last
    return isinstance(item, FunctionCallItem) or "tool_calls" not in last


def _add(message: dict[str, Any], item: ResponseItem) -> None:
    if isinstance(item, MessageItem):
        message["content"] += _text(item.content)
    elif isinstance(item, FunctionCallItem):
        function = {"name": item.name, "arguments": item.arguments}
        message.setdefault("tool_calls", []).append({"id": item.call_id, "function": function})
    elif isinstance(item, ReasoningItem):
        said = _text(item.content) or _text(item.summary)
        message["reasoning"] = message.get("reasoning", "") + said


def _text(content: str | Sequence[ResponsePart]) -> str:
    return content if isinstance(content, str) else "".join(part.said for part in content)
