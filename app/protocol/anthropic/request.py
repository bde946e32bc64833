"""The bodies of POST /v1/messages and POST /v1/messages/count_tokens."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from app.limits import MAX_MESSAGES, MAX_STOP_LEN, MAX_STOPS, MAX_TOOLS
from app.protocol.anthropic.blocks import (
    AnthropicMessage,
    TextContent,
    text_of_blocks,
    to_chat_messages,
)
from app.protocol.chat.tools import ToolName
from app.protocol.chat.translated import names_of_members
from app.protocol.generation_fields import ModelBody
from app.protocol.strict import JsonObject, Strict, fault

_Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LEN)]


# a chat's name of a field -> that of a message
_NAMES = {
    "stop": "stop_sequences",
    "reasoning_effort": "output_config.effort",
    "response_format.json_schema": "output_config.format",
    "tool_choice.function": "tool_choice",
}


class AnthropicTool(Strict):
    """A function that the model may call; `input_schema` is a JSON schema."""

    place: ClassVar[str] = "tools."
    ignored: ClassVar[Collection[str]] = ("cache_control",)
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "allowed_callers": (["direct"],),
        "defer_loading": (False,),
        "input_examples": (),
        "eager_input_streaming": (False, True),
    }

    type: Literal["custom"] = "custom"
    name: ToolName
    description: str | None = None
    input_schema: JsonObject
    strict: bool = False
    cache_control: JsonObject | None = None

    def as_chat(self) -> dict[str, Any]:
        """Return it as a chat has it."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.input_schema,
            "strict": self.strict,
        }
        return {"type": "function", "function": function}


class AnthropicToolChoice(Strict):
    """How tools may be chosen."""

    place: ClassVar[str] = "tool_choice."

    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if self.type == "tool" and self.name is None:
            raise fault("name", "it must be given", "missing_required_parameter")
        return self

    def as_chat(self) -> Any:
        """Return it as a chat has it."""
        if self.type == "tool":
            return {"type": "function", "function": {"name": self.name}}
        return {"any": "required"}.get(self.type, self.type)


class ThinkingSettings(Strict):
    """Whether the model is to think; how long is its own choice."""

    place: ClassVar[str] = "thinking."

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1)
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Strict):
    """The JSON schema that the text must match."""

    place: ClassVar[str] = "output_config.format."

    type: Literal["json_schema"]
    json_schema: JsonObject = Field(alias="schema")


class OutputSettings(Strict):
    """How much effort, and what the text must look like."""

    place: ClassVar[str] = "output_config."

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountTokensRequest(ModelBody):
    """A conversation whose tokens are to be counted."""

    ignored: ClassVar[Collection[str]] = ("cache_control",)
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "container": (),
        "context_management": (),
        "inference_geo": (),
        "mcp_servers": ([],),
        "speed": ("standard",),
    }

    messages: list[AnthropicMessage] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    system: TextContent | None = None
    tools: Annotated[list[AnthropicTool], Field(max_length=MAX_TOOLS, fail_fast=True)] = Field([])
    tool_choice: AnthropicToolChoice = AnthropicToolChoice(type="auto")
    thinking: ThinkingSettings | None = None
    output_config: OutputSettings = OutputSettings()
    cache_control: JsonObject | None = None

    def as_chat(self) -> dict[str, Any]:
        """Return the body of the chat that this is."""
        chat: dict[str, Any] = {
            "model": self.model,
            "messages": self._messages(),
            "tools": [tool.as_chat() for tool in self.tools],
            "parallel_tool_calls": not self.tool_choice.disable_parallel_tool_use,
            "reasoning_effort": self.output_config.effort,
            # an answer that the client has begun is gone on with
            "continue_final_message": self.messages[-1].role == "assistant",
        }
        if self.tools or self.tool_choice.type in ("any", "tool"):
            chat["tool_choice"] = self.tool_choice.as_chat()
        if self.thinking is not None:
            wanted = self.thinking.type != "disabled"
            chat["chat_template_kwargs"] = {"enable_thinking": wanted}
        return chat

    def names(self) -> dict[str, str]:
        """Return a field of the chat -> that of this body."""
        places = [place for place, _ in self._said()]
        return _NAMES | names_of_members(places, len(self.tools))

    def _messages(self) -> list[dict[str, Any]]:
        return [message for _, message in self._said()]

    def _said(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the messages of the chat, each with where its content stands."""
        said = to_chat_messages(self.messages)
        if not self.system:
            return said
        return [("system", {"role": "system", "content": text_of_blocks(self.system)}), *said]


class MessagesRequest(CountTokensRequest):
    """A request for the next message of a conversation."""

    ignored: ClassVar[Collection[str]] = ("metadata", "service_tier", "cache_control")

    max_tokens: int = Field(ge=1)
    stop_sequences: Annotated[list[_Stop], Field(max_length=MAX_STOPS, fail_fast=True)] = Field([])
    stream: bool = False
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=2**31 - 1)
    metadata: JsonObject | None = None
    service_tier: str | None = None

    def as_chat(self) -> dict[str, Any]:
        """Return the body of the chat that this is."""
        chat = super().as_chat()
        for name in ("max_tokens", "stream", "temperature", "top_p", "top_k"):
            if (value := getattr(self, name)) is not None:
                chat[name] = value
        chat["stop"] = self.stop_sequences
        if self.output_config.format is not None:
            schema = {"name": "answer", "schema": self.output_config.format.json_schema}
            chat["response_format"] = {"type": "json_schema", "json_schema": schema}
        return chat
