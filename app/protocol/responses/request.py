"""The body of POST /v1/responses. Nothing is stored: each request has the whole conversation."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, Tag, model_validator

from app.limits import MAX_MESSAGES, MAX_METADATA, MAX_TOOLS, MAX_TOP_LOGPROBS
from app.protocol.chat.tools import ToolName
from app.protocol.chat.translated import names_of_members
from app.protocol.generation_fields import ModelBody, Stops
from app.protocol.responses.items import AnyItem, to_messages
from app.protocol.sampling_fields import SamplingFields
from app.protocol.strict import JsonObject, Strict, either, fault

_STORED = "nothing is stored here, so send the whole conversation as input and leave it out"
_INPUT = "it must be text or a list of items"


class ResponseFunction(Strict):
    """A function that the model may call; `parameters` are a JSON schema."""

    place: ClassVar[str] = "tools."
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {"defer_loading": (False,)}

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool = False

    def as_chat(self) -> dict[str, Any]:
        """Return it as a chat has it."""
        function = self.model_dump(exclude={"type"}, exclude_none=True)
        return {"type": "function", "function": function}


class NamedFunction(Strict):
    """The one function to be called."""

    place: ClassVar[str] = "tool_choice."

    type: Literal["function"]
    name: ToolName


class TextSettings(Strict):
    """What the text of an answer must look like; `format` is that of a chat, less nested."""

    place: ClassVar[str] = "text."

    format: JsonObject = Field(default={"type": "text"})
    verbosity: Literal["low", "medium", "high"] | None = None

    def response_format(self) -> dict[str, Any]:
        """Return it as a chat has it."""
        if self.format.get("type") != "json_schema":
            return self.format
        schema = {key: value for key, value in self.format.items() if key != "type"}
        return {"type": "json_schema", "json_schema": schema}


class ReasoningSettings(Strict):
    """How much the model is to think; it thinks aloud, so there are no summaries."""

    place: ClassVar[str] = "reasoning."

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseStreamOptions(Strict):
    """Accepted without effect: nothing is obfuscated."""

    place: ClassVar[str] = "stream_options."

    include_obfuscation: bool | None = None


def _kind_of_input(given: Any) -> str | None:
    return "<text>" if isinstance(given, str) else "<items>" if isinstance(given, list) else None


def _kind_of_choice(choice: Any) -> str | None:
    return "<word>" if isinstance(choice, str) else "<named>" if isinstance(choice, dict) else None


# a chat's name of a field -> that of a response
_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "reasoning_effort": "reasoning.effort",
    "tool_choice.function": "tool_choice",
}


class ResponsesRequest(SamplingFields, ModelBody):
    """A request for the next items of a conversation."""

    ignored: ClassVar[Collection[str]] = (
        "metadata",
        "user",
        "safety_identifier",
        "prompt_cache_key",
        "service_tier",
        "stream_options",
    )
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "background": (False,),
        "context_management": (),
        "early_stopping": (),
        "length_penalty": (1,),
        "max_tool_calls": (),
        "moderation": (),
        "n": (1,),
        "prompt": (),
        "prompt_cache_retention": (),
        "prompt_cache_options": (),
        "use_beam_search": (False,),
    }

    input: Annotated[
        Annotated[str, Tag("<text>")]
        | Annotated[
            list[AnyItem],
            Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True),
            Tag("<items>"),
        ],
        either(_kind_of_input, _INPUT),
    ]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    tools: Annotated[list[ResponseFunction], Field(max_length=MAX_TOOLS, fail_fast=True)] = Field(
        []
    )
    tool_choice: Annotated[
        Annotated[Literal["none", "auto", "required"], Tag("<word>")]
        | Annotated[NamedFunction, Tag("<named>")],
        either(_kind_of_choice, "it must be a word or name a function"),
    ] = "auto"
    text: TextSettings = TextSettings()
    reasoning: ReasoningSettings = ReasoningSettings()
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] = Field(
        [], max_length=8, fail_fast=True
    )
    top_logprobs: int = Field(0, ge=0, le=MAX_TOP_LOGPROBS)
    truncation: Literal["auto", "disabled"] = "disabled"
    store: bool = False
    previous_response_id: str | None = None
    conversation: Any = None
    metadata: Annotated[dict[str, str], Field(max_length=MAX_METADATA, fail_fast=True)] | None = (
        None
    )
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    stream_options: ResponseStreamOptions | None = None

    user: str | None = None

    stream: bool = False
    parallel_tool_calls: bool = True
    include_reasoning: bool = True
    # beside those of OpenAI, as in a chat
    stop: Stops | None = None
    chat_template_kwargs: JsonObject = Field(default={})
    cache_salt: str | None = None
    session_id: str | None = None
    request_id: str | None = None

    @model_validator(mode="after")
    def _check_stored(self) -> Self:
        for name in ("store", "previous_response_id", "conversation"):
            if getattr(self, name):
                raise fault(name, _STORED, "unsupported_parameter")
        return self

    def as_chat(self) -> dict[str, Any]:
        """Return the body of the chat that this is."""
        given = self.model_fields_set
        same = given & (SamplingFields.model_fields.keys() | set(_SAME))
        chat = {name: getattr(self, name) for name in same}
        chat["messages"] = self._messages()
        chat["max_completion_tokens"] = self.max_output_tokens
        chat["tools"] = [tool.as_chat() for tool in self.tools]
        if self.tools or self.tool_choice == "required":
            chat["tool_choice"] = self._choice()
        chat["response_format"] = self.text.response_format()
        chat["reasoning_effort"] = self.reasoning.effort
        if self.truncation == "auto":
            chat["truncate_prompt_tokens"] = -1
        if "message.output_text.logprobs" in self.include or self.top_logprobs:
            chat |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        return chat

    def names(self) -> dict[str, str]:
        """Return a field of the chat -> that of this body."""
        places = [place for place, _ in self._said()]
        return _NAMES | names_of_members(places, len(self.tools))

    def _messages(self) -> list[dict[str, Any]]:
        return [message for _, message in self._said()]

    def _said(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the messages of the chat, each with where its content stands."""
        system = [("instructions", _message("system", self.instructions or ""))]
        said = self.input
        found = [("input", _message("user", said))] if isinstance(said, str) else to_messages(said)
        return found if self.instructions is None else system + found

    def _choice(self) -> Any:
        choice = self.tool_choice
        if isinstance(choice, str):
            return choice
        return {"type": "function", "function": {"name": choice.name}}


# fields of a chat by the same name
_SAME = (
    "model",
    "stream",
    "stop",
    "parallel_tool_calls",
    "include_reasoning",
    "chat_template_kwargs",
    "cache_salt",
    "session_id",
    "request_id",
    "user",
)


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}
