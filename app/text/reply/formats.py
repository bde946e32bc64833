"""The published ways in which models write calls of tools, and which of them a model uses."""

import itertools
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from app.text.reply import harmony as harmony_format
from app.text.reply import pythonic_calls as pythonic_format
from app.text.reply import thinking as thinking_format
from app.text.reply.call_grammar import CallFrame
from app.text.reply.json_calls import JsonFrame, json_calls
from app.text.reply.machine import Machine, ReplyParser, read_text, replay
from app.text.reply.parts import ReplyWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """How a model writes calls.

    Attributes:
        read: the parser.
        signs: of this format in a chat template: all of one of these.
        markers: control tokens that the parser must see in the text.
        one_call_each: whether the template takes one call in a message.
        id_len: characters of the id of a call, where the template wants so many.
        takes_tools: whether the model's template describes tools; else a system message does.
        has_channels: whether the format splits off reasoning by itself.
        frame: how calls are written that are forced; None where none can be.
        read_forced: the parser of such ones, if another one.
    """

    read: Callable[[ReplyWriter], Machine[None]]
    signs: tuple[tuple[str, ...], ...] = ()
    markers: tuple[str, ...] = ()
    one_call_each: bool = False
    id_len: int | None = None
    takes_tools: bool = True
    has_channels: bool = False
    frame: CallFrame | None = None
    read_forced: Callable[[ReplyWriter], Machine[None]] | None = None

    def make_id(self) -> str:
        """Return an id that no other call has."""
        if self.id_len is None:
            return f"call_{secrets.token_hex(12)}"
        return secrets.token_hex(self.id_len)[: self.id_len]


def _json(frame: JsonFrame) -> Callable[[ReplyWriter], Machine[None]]:
    return partial(json_calls, frame=frame)


_BARE = _json(JsonFrame(open="<|python_tag|>", separators=";,", is_bare=True))
_BARE_FRAME = CallFrame(between="; ", arguments="parameters")
_IN_TAGS = _json(JsonFrame(open="<tool_call>", close="</tool_call>"))

# the first one whose signs are in the template is the model's
FORMATS: Mapping[str, CallFormat] = {
    # https://cookbook.openai.com/articles/openai-harmony
    "harmony": CallFormat(
        read=harmony_format.harmony,
        signs=(("<|channel|>", "<|message|>"),),
        markers=(
            harmony_format.CHANNEL,
            harmony_format.MESSAGE,
            harmony_format.START,
            "<|constrain|>",
            *harmony_format.ENDS,
        ),
        has_channels=True,
    ),
    # https://docs.mistral.ai/guides/tokenization: a list, and since version 11 name[ARGS]{...}
    "mistral": CallFormat(
        read=_json(JsonFrame(open="[TOOL_CALLS]", names=(r"\s*(\[CALL_ID\]\w+)?\[ARGS\]\s*|\s*",))),
        signs=(("[TOOL_CALLS]", "[AVAILABLE_TOOLS]"), ("[TOOL_CALLS]", "[INST]")),
        markers=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        frame=CallFrame(open="[TOOL_CALLS] [", close="]", between=", "),
        id_len=9,
    ),
    # Hermes 2 Pro, Qwen2.5, Qwen3, SmolLM3; https://github.com/NousResearch/Hermes-Function-Calling
    "hermes": CallFormat(
        read=_IN_TAGS,
        signs=(("<tool_call>", "tools", '"name"'), ("<tool_call>", "tools", "'name'")),
        markers=("<tool_call>", "</tool_call>"),
        frame=CallFrame(
            open="<tool_call>\n", close="\n</tool_call>", between="\n", wraps_each=True
        ),
    ),
    # https://github.com/meta-llama/llama-models/blob/main/models/llama4/README.md
    "pythonic": CallFormat(
        read=pythonic_format.pythonic_calls,
        signs=(("func_name1(", "tools"), ("<|python_start|>", "tools")),
        markers=("<|python_start|>", "<|python_end|>"),
        # a schema says how JSON is written, but not Python
        frame=_BARE_FRAME,
        read_forced=_BARE,
    ),
    # https://github.com/meta-llama/llama-models/blob/main/models/llama3_1/prompt_format.md
    "llama3_json": CallFormat(
        read=_BARE,
        frame=_BARE_FRAME,
        signs=(("<|start_header_id|>", "tools", "parameters"),),
        markers=("<|python_tag|>",),
        one_call_each=True,
    ),
    # of https://huggingface.co/HuggingFaceTB/SmolLM2-1.7B-Instruct: a list, and a system message
    "smollm2": CallFormat(
        read=_IN_TAGS,
        markers=("<tool_call>", "</tool_call>"),
        takes_tools=False,
        frame=CallFrame(open="<tool_call>[", close="]</tool_call>", between=", "),
    ),
}
# what these write between their tags is not JSON
_OTHER_SIGNS = ("<function=", "<arg_key>", "<parameter=")
_THINK_SIGNS = (thinking_format.CLOSE,)


def format_of(template: str) -> str:
    """Return the name of the format of a chat template.

    A template that takes no tools, or writes calls in a way that is not known, gets `smollm2`: a
    system message describes the tools, and how to call them.
    """
    if not any(sign in template for sign in _OTHER_SIGNS):
        for name, known in FORMATS.items():
            if any(all(sign in template for sign in signs) for signs in known.signs):
                return name
    return "smollm2"


def thinks(template: str) -> bool:
    """Whether a model with this template thinks aloud between tags."""
    return any(sign in template for sign in _THINK_SIGNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyStyle:
    """How the replies of a model are written.

    Attributes:
        name: of `calls`.
        calls: how it calls tools.
        thinks: whether it thinks aloud between tags.
    """

    name: str
    calls: CallFormat
    thinks: bool

    @classmethod
    def of(cls, template: str, calls: str = "auto", reasoning: str = "auto") -> "ReplyStyle":
        """Return the style of a model.

        Args:
            template: its chat template.
            calls: a name of `FORMATS`, or `auto` for what the template says.
            reasoning: `think`, `none`, or `auto` for what the template says.
        """
        name = format_of(template) if calls == "auto" else calls
        is_between_tags = reasoning == "think" or (reasoning == "auto" and thinks(template))
        style = FORMATS[name]
        return cls(name=name, calls=style, thinks=is_between_tags and not style.has_channels)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyFormat:
    """How one reply is to be taken apart.

    Attributes:
        calls: how tools are called, or in which channels the reply comes; None for neither.
        tools: names of the tools that may be called.
        max_calls: later ones are left out; None for all.
        is_forced: whether calls come as a grammar has them.
        thinks: whether the reply may begin with reasoning between tags.
        is_thinking: whether it begins inside of it, as the prompt does not end it.
        keeps_reasoning: whether the client sees the reasoning.
    """

    calls: CallFormat | None = None
    tools: frozenset[str] = frozenset()
    max_calls: int | None = None
    is_forced: bool = False
    thinks: bool = False
    is_thinking: bool = False
    keeps_reasoning: bool = True

    @property
    def markers(self) -> tuple[str, ...]:
        """Spellings of control tokens that the text must keep."""
        calls = self.calls.markers if self.calls is not None else ()
        return (*calls, thinking_format.OPEN, thinking_format.CLOSE) if self.thinks else calls

    def parser(self) -> ReplyParser:
        """Return a parser for one choice."""
        fallback = (f"call_{number}" for number in itertools.count())
        make_id = self.calls.make_id if self.calls is not None else partial(next, fallback)
        writer = ReplyWriter(tools=self.tools, make_id=make_id, max_calls=self.max_calls)
        return ReplyParser(self._machine(writer), writer)

    def _machine(self, writer: ReplyWriter) -> Machine[None]:
        begun = ""
        if self.thinks:
            begun = yield from thinking_format.thinking(writer, is_open=self.is_thinking)
        read = _text if self.calls is None else self.calls.read
        if self.is_forced and self.calls is not None:
            read = self.calls.read_forced or read
        yield from replay(begun, read(writer))


def _text(writer: ReplyWriter) -> Machine[None]:
    yield from read_text(writer, ())
