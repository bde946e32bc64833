"""Renders a conversation with the Jinja template that a model comes with."""

import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from app.text.template_options import TemplateOptions
from engine.errors import ConfigError, InvalidRequest

# rounds of `range` loops in one rendering; templates loop over messages, not over numbers
_MAX_ROUNDS = 100_000
# CPU time of a rendering: thousands of messages take some milliseconds
_MAX_RENDER_S = 1.0
# of a prompt, and of a text that is put together by multiplication; bodies are much smaller
_MAX_CHARACTERS = 32 << 20
_MAX_EXPONENT = 64
# in a compiled template, what is called in every round and macro
_LOOK = "look_at_the_time"
_LOOK_EVERY = 8
_MAX_REASON_LEN = 300
# of loops, and plain values
_OF_LOOPS = frozenset(("first", "last", "index", "index0", "length"))
# what a request's own variables may not replace
RESERVED = frozenset(
    (
        "messages",
        "tools",
        "add_generation_prompt",
        "range",
        "raise_exception",
        "strftime_now",
        _LOOK,
    )
)
_PLAIN = TemplateOptions()
# one turn, as short as templates take it
_QUESTION, _ANSWER = "Is it late?", "It is noon."
# what a template can raise at a message that its author did not think of
_RENDER_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """A compiled template, run in a sandbox.

    It sees what Hugging Face templates expect: `messages`, `add_generation_prompt`, `tools` or
    None, `documents` (None), the special tokens by name, `raise_exception`, `strftime_now`,
    `tojson`, and the variables of a request.

    Attributes:
        source: of the template.

    Raises:
        ConfigError: if the template is not valid Jinja.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._variables = {**special_tokens, "tools": None, "documents": None}
        self.source = source
        self._knows_developer = "developer" in source
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"the chat template is not valid: {error}") from error

    def render(
        self, messages: Sequence[Mapping[str, Any]], options: TemplateOptions = _PLAIN
    ) -> str:
        """Return the prompt text.

        The role `developer` becomes `system` where the template does not know it.

        Raises:
            InvalidRequest: if the template refuses the messages.
        """
        known = [self._with_known_role(message) for message in messages]
        if not options.continues_last:
            return self._rendered(known, options)
        # whatever the template writes behind the last message is cut off
        end = secrets.token_hex(16)
        last = {**known[-1], "content": known[-1]["content"] + end}
        text, found, _ = self._rendered([*known[:-1], last], options).rpartition(end)
        if not found:
            raise InvalidRequest(
                "the model's chat template does not show the last message as it is, so that it "
                "cannot be continued",
                param="continue_final_message",
            )
        return text

    def _rendered(self, messages: Sequence[Mapping[str, Any]], options: TemplateOptions) -> str:
        try:
            return _joined(
                self._template.generate(
                    {**self._variables, **options.variables},
                    messages=messages,
                    tools=list(options.tools) or None,
                    add_generation_prompt=options.add_generation_prompt,
                    range=_RoundBudget(_MAX_ROUNDS).range,
                    **{_LOOK: _TimeBudget(_MAX_RENDER_S)},
                )
            )
        except _Refused as error:
            reason = str(error)[:_MAX_REASON_LEN]
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {reason}", param="messages"
            ) from error
        except _RENDER_ERRORS as error:
            raise InvalidRequest(
                "the model's chat template cannot render these messages", param="messages"
            ) from error

    def end_of_answer(self) -> str:
        """Return what the template writes behind an answer; nothing if it takes no answers."""
        turn = [("user", _QUESTION), ("assistant", _ANSWER)]
        messages = [{"role": role, "content": content} for role, content in turn]
        try:
            text = self.render(messages, TemplateOptions(add_generation_prompt=False))
        except InvalidRequest:
            return ""
        return text.rpartition(_ANSWER)[2] if _ANSWER in text else ""

    def _with_known_role(self, message: Mapping[str, Any]) -> dict[str, Any]:
        if message["role"] == "developer" and not self._knows_developer:
            return {**message, "role": "system"}
        return dict(message)


class _Refused(jinja2.TemplateError):
    """The template called `raise_exception`."""


class _RoundBudget:
    """Limits the rounds of all `range` loops together, so that nested loops cannot run for ever."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def range(self, *arguments: int) -> Iterator[int]:
        values = range(*arguments)
        self._rounds -= len(values)
        if self._rounds < 0:
            raise OverflowError("the chat template loops too long")
        return iter(values)


class _TimeBudget:
    """Limits the CPU time of one rendering, which happens in one thread; called to look at it."""

    def __init__(self, seconds: float) -> None:
        self._end_s = time.thread_time() + seconds
        self._num_calls = 0

    def __call__(self) -> None:
        self._num_calls += 1
        # the clock takes as long as a message
        if self._num_calls % _LOOK_EVERY == 0 and time.thread_time() > self._end_s:
            raise OverflowError("the chat template takes too long")


def _joined(pieces: Iterator[str]) -> str:
    """Join what a template writes, unless it writes without end."""
    kept, length = [], 0
    for piece in pieces:
        length += len(piece)
        if length > _MAX_CHARACTERS:
            raise OverflowError("the chat template writes too much")
        kept.append(piece)
    return "".join(kept)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Has templates look at the time, and multiply nothing that would take much memory."""

    intercepted_binops = frozenset(("*", "**"))

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree = super()._parse(source, name, filename)
        for node in tree.find_all((jinja2.nodes.For, jinja2.nodes.Macro)):
            body: list[jinja2.nodes.Node] = node.body  # type: ignore[attr-defined]
            look = jinja2.nodes.Name(_LOOK, "load")
            call = jinja2.nodes.Call(look, [], [], None, None)
            body.insert(0, jinja2.nodes.ExprStmt(call).set_lineno(node.lineno))
        return tree

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        # once for each message: what guards against a template's calls would take the most time
        if type(__obj) is _TimeBudget:
            return __obj()
        return super().call(__context, __obj, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        # of a loop the same, which has nothing that could be harmed
        if type(obj) is LoopContext and attribute in _OF_LOOPS:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and abs(right) > _MAX_EXPONENT:
            raise OverflowError("the chat template computes too large a number")
        for sequence, number in ((left, right), (right, left)):
            is_repeated = operator == "*" and isinstance(sequence, (str, list, tuple))
            if is_repeated and len(sequence) * number > _MAX_CHARACTERS:
                raise OverflowError("the chat template writes too much")
        return super().call_binop(context, operator, left, right)


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks the model's own words for training; its body is kept."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> _Sandbox:
    environment = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML, which a prompt must not
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise _Refused(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)
