"""The body of POST /v1/chat/completions."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from app.limits import (
    MAX_CACHE_BREAKPOINTS,
    MAX_DOCUMENTS,
    MAX_MESSAGES,
    MAX_METADATA,
    MAX_TOP_LOGPROBS,
)
from app.protocol.chat.messages import CacheBreakpoint, CacheTtl, Message, text_of
from app.protocol.chat.tools import NamedTool, Tool, ToolFields
from app.protocol.generation_fields import IGNORED, UNSUPPORTED, GenerationFields
from app.protocol.strict import JsonObject, Strict, fault
from app.text.chat_template import RESERVED
from app.text.template_options import TemplateOptions

_Labels = Annotated[dict[str, str], Field(max_length=MAX_METADATA, fail_fast=True)]
_RESERVED = ", ".join(sorted(RESERVED))


_TTL_S: Mapping[CacheTtl, float] = {"30m": 1800.0, "12h": 43200.0}


class PromptCacheOptions(Strict):
    """Beginnings are cached by themselves; those that parts mark stay for so long at least."""

    place: ClassVar[str] = "prompt_cache_options."

    mode: Literal["implicit", "explicit"] = "implicit"
    ttl: CacheTtl = "30m"


class ChatRequest(GenerationFields, ToolFields):
    """A request for the next message of a conversation."""

    ignored: ClassVar[Collection[str]] = IGNORED | {
        "documents",
        "metadata",
        "store",
        "safety_identifier",
        "prompt_cache_key",
        "service_tier",
        "verbosity",
    }
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = UNSUPPORTED | {
        "best_of": (1,),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "chat_template": (),
        "media_io_kwargs": (),
        "mm_processor_kwargs": (),
        "audio": (),
        "modalities": (["text"],),
        "moderation": (),
        "prediction": (),
        "prompt_cache_retention": (),
        "web_search_options": (),
    }

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MAX_TOP_LOGPROBS)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template_kwargs: JsonObject = Field(default={})
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    include_reasoning: bool = True
    echo: bool = False
    return_prompt_text: bool = False
    prompt_cache_options: PromptCacheOptions | None = None

    # accepted without effect, see `ignored`
    documents: Annotated[list[_Labels], Field(max_length=MAX_DOCUMENTS, fail_fast=True)] | None = (
        None
    )
    metadata: _Labels | None = None
    store: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    verbosity: Literal["low", "medium", "high"] | None = None

    @property
    def num_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    @property
    def output_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def output_limit_name(self) -> str:
        return "max_completion_tokens" if self.max_completion_tokens else "max_tokens"

    @property
    def prompt_items(self) -> int:
        return super().prompt_items + self.return_prompt_text

    @property
    def prompt_items_field(self) -> str:
        only_text = self.prompt_items == self.return_prompt_text == 1
        return "return_prompt_text" if only_text else super().prompt_items_field

    @property
    def echoed(self) -> str:
        """What each choice begins with: the last message, if it is the model's own."""
        last = self.messages[-1]
        return text_of(last.content) if self.echo and last.role == "assistant" else ""

    def marked_heads(self) -> list[tuple[list[Message], float]]:
        """Return what of the conversation is to stay cached, and for how many seconds."""
        options = self.prompt_cache_options or PromptCacheOptions()
        heads: list[tuple[list[Message], float]] = []
        for index, num_parts, mark in self._marks():
            last = self.messages[index]
            last = last.model_copy(update={"content": last.content[:num_parts]})
            heads.append(([*self.messages[:index], last], _TTL_S[mark.ttl or options.ttl]))
        return heads

    def _marks(self) -> list[tuple[int, int, CacheBreakpoint]]:
        """Index of a message, the number of its parts up to a mark, and that."""
        return [
            (index, number, part.prompt_cache_breakpoint)
            for index, message in enumerate(self.messages)
            if not isinstance(message.content, str)
            for number, part in enumerate(message.content, start=1)
            if part.prompt_cache_breakpoint is not None
        ]

    def fields_without_effect(self) -> list[str]:
        is_idle = self.prompt_cache_options is not None and not self._marks()
        return super().fields_without_effect() + ["prompt_cache_options"] * is_idle

    @property
    def offered_tools(self) -> list[Tool]:
        """The tools that the model may call."""
        if isinstance(self.tool_choice, NamedTool):
            name = self.tool_choice.function.name
            return [tool for tool in self.tools if tool.function.name == name]
        return [] if self.tool_choice == "none" else self.tools

    @property
    def must_call(self) -> bool:
        """Whether the answer must be a call."""
        return self.tool_choice not in (None, "none", "auto")

    def template_options(self) -> TemplateOptions:
        """Return how the conversation is rendered, tools included."""
        variables = dict(self.chat_template_kwargs)
        if self.reasoning_effort is not None:
            variables.setdefault("reasoning_effort", self.reasoning_effort)
            # how Qwen3 and SmolLM3 are asked not to think
            variables.setdefault("enable_thinking", self.reasoning_effort != "none")
        return TemplateOptions(
            add_generation_prompt=(
                not self.continue_final_message
                if self.add_generation_prompt is None
                else self.add_generation_prompt
            ),
            continues_last=self.continue_final_message,
            add_special_tokens=self.add_special_tokens,
            tools=[tool.for_template() for tool in self.offered_tools],
            variables=variables,
        )

    @property
    def tool_names(self) -> frozenset[str]:
        """Names of all tools."""
        return frozenset(tool.function.name for tool in self.tools)

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        most = MAX_CACHE_BREAKPOINTS
        if len(self._marks()) > most:
            raise fault("messages", f"at most {most} of its parts may have prompt_cache_breakpoint")
        return self

    @model_validator(mode="after")
    def _check_top_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise fault("top_logprobs", "it needs logprobs to be true")
        return self

    @model_validator(mode="after")
    def _check_tool_choice(self) -> Self:
        choice = self.tool_choice
        if self.must_call and self.ignore_eos:
            raise fault("ignore_eos", "it cannot be used with a tool_choice that forces a call")
        if not self.tools and choice not in (None, "none", "auto"):
            raise fault("tool_choice", "it needs tools")
        if isinstance(choice, NamedTool) and choice.function.name not in self.tool_names:
            raise fault("tool_choice.function.name", "it must be the name of one of the tools")
        return self

    @model_validator(mode="after")
    def _check_template(self) -> Self:
        if RESERVED & self.chat_template_kwargs.keys():
            raise fault("chat_template_kwargs", f"it may not set {_RESERVED}")
        if self.continue_final_message and self.add_generation_prompt:
            raise fault(
                "add_generation_prompt", "it must be false or left out with continue_final_message"
            )
        return self
