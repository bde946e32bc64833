"""Messages of a conversation, in every shape that clients send."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import BeforeValidator, Field, Tag, model_validator

from app.limits import MAX_PARTS, MAX_TOOL_CALLS
from app.protocol.chat.tools import ToolName
from app.protocol.strict import JsonObject, Strict, either, fault

_MEDIA = ("image_url", "input_audio", "video_url", "audio_url", "file", "image_embeds")
CACHE_MARK = "messages.content.prompt_cache_breakpoint"
CacheTtl = Literal["30m", "12h"]
_CONTENT = "it must be text or a list of text parts"
# fields of most messages
_PLAIN, _SIMPLE = {"role", "content"}, ("user", "system")
_ARGUMENTS = "it must be the JSON of an object, or that object"


def _refuse_media(part: Any) -> Any:
    if isinstance(part, dict) and part.get("type") in _MEDIA:
        raise fault("", "only text parts are supported", "unsupported_parameter")
    return part


def _kind_of_content(content: Any) -> str | None:
    return (
        "<text>" if isinstance(content, str) else "<parts>" if isinstance(content, list) else None
    )


class CacheBreakpoint(Strict):
    """A wish that the conversation up to a piece of a message, that one included, stays cached."""

    place: ClassVar[str] = "messages.content.prompt_cache_breakpoint."

    mode: Literal["explicit"]
    ttl: CacheTtl | None = None


class TextPart(Strict):
    """A piece of a message."""

    place: ClassVar[str] = "messages.content."
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "annotations": (),
        "cache_control": (),
    }

    type: Literal["text", "refusal"]
    text: str
    prompt_cache_breakpoint: CacheBreakpoint | None = None

    @model_validator(mode="before")
    @classmethod
    def _as_text(cls, part: Any) -> Any:
        """Take what a model said in refusal as what it said."""
        if isinstance(part, dict) and part.get("type") == "refusal" and "refusal" in part:
            return {**{k: v for k, v in part.items() if k != "refusal"}, "text": part["refusal"]}
        return part


_Part = Annotated[TextPart, BeforeValidator(_refuse_media)]
_PARTS = Field(min_length=1, max_length=MAX_PARTS, fail_fast=True)
Content = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[_Part], _PARTS, Tag("<parts>")],
    either(_kind_of_content, _CONTENT),
]


def _parsed(arguments: Any) -> Any:
    """Return the arguments of a call as an object where they are one, as templates write them.

    Those that a model did not end, or wrote wrongly, stay the text that they are.
    """
    if not isinstance(arguments, str):
        return arguments
    if not arguments.strip():
        return {}
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _kind_of_arguments(arguments: Any) -> str | None:
    return "<text>" if isinstance(arguments, str) else "<object>" * isinstance(arguments, dict)


class CalledFunction(Strict):
    """A function that was called."""

    place: ClassVar[str] = "messages.tool_calls.function."

    name: ToolName
    arguments: Annotated[
        Annotated[str, Tag("<text>")] | Annotated[JsonObject, Tag("<object>")],
        either(_kind_of_arguments, _ARGUMENTS),
        BeforeValidator(_parsed, json_schema_input_type=str | dict[str, Any]),
    ] = Field(default={})


class ToolCall(Strict):
    """A call that an assistant made."""

    place: ClassVar[str] = "messages.tool_calls."

    id: str | None = Field(None, max_length=128)
    type: Literal["function"] = "function"
    # chunks of a stream have it
    index: int | None = None
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """Return what a chat template sees."""
        return {"id": self.id, "type": "function", "function": self.function.model_dump()}


class Message(Strict):
    """One message of a conversation; that of an answer can be sent back unchanged."""

    place: ClassVar[str] = "messages."
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "annotations": (),
        "audio": (),
        "task": (),
        "tools": (),
    }

    role: Literal["developer", "system", "user", "assistant", "tool"]
    content: Content
    name: str | None = Field(None, pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    tool_call_id: str | None = Field(None, max_length=128)
    # made anew for each message, as a constant it would be copied by Python
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOL_CALLS, fail_fast=True)] = Field(
        default_factory=list, json_schema_extra={"default": []}
    )
    reasoning: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, message: Any) -> Any:
        """Bring the shapes of different clients and servers to one."""
        if not isinstance(message, dict):
            return message
        if message.keys() == _PLAIN and message["role"] in _SIMPLE and message["content"]:
            return message
        given = {key: value for key, value in message.items() if value is not None}
        if given.get("name") == "":
            del given["name"]
        _rename(given, "reasoning_content", "reasoning")
        if given.get("role") == "assistant":
            _from_assistant(given)
        elif given.get("role") == "function":
            given["role"] = "tool"
        if "content" not in given:
            raise fault("content", _CONTENT, "missing_required_parameter")
        return given

    @model_validator(mode="after")
    def _check_calls(self) -> "Message":
        if self.tool_calls and self.role != "assistant":
            raise fault("tool_calls", "only an assistant calls tools")
        return self

    def for_template(self) -> dict[str, Any]:
        """Return what a chat template sees; text parts become one string."""
        shown: dict[str, Any] = {"role": self.role, "content": text_of(self.content)}
        if self.model_fields_set <= _PLAIN:
            return shown
        calls = [call.for_template() for call in self.tool_calls]
        rest = {
            "name": self.name,
            "tool_call_id": self.tool_call_id,
            "tool_calls": calls or None,
            # templates know one of these names
            "reasoning_content": self.reasoning,
            "thinking": self.reasoning,
        }
        return shown | {key: value for key, value in rest.items() if value is not None}


def cache_marks(messages: Sequence[Message]) -> list[str]:
    """Return the name of the marks that parts of messages have, if any: few routes heed them."""
    parts = (part for m in messages if not isinstance(m.content, str) for part in m.content)
    return [CACHE_MARK] if any(part.prompt_cache_breakpoint for part in parts) else []


def text_of(content: str | Sequence[TextPart]) -> str:
    """Return a message's content as one text."""
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _from_assistant(given: dict[str, Any]) -> None:
    """An assistant may have said nothing, refused, or called as older clients write it."""
    refusal = given.pop("refusal", None)
    if given.get("content") in (None, []):
        given["content"] = refusal or ""
    call = given.pop("function_call", None)
    if call and not given.get("tool_calls"):
        given["tool_calls"] = [{"function": call}]


def _rename(given: dict[str, Any], old: str, new: str) -> None:
    """Take a field by its other name; of two the one that says more is kept."""
    value = given.pop(old, None)
    if value and not given.get(new):
        given[new] = value
