"""`pagoda chat`: a conversation on a terminal, or one question from the command line or a pipe."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.command.client.complete import read_prompt
from app.command.client.connection import (
    Connection,
    Refused,
    add_server_options,
    connected,
    find_target,
)
from app.command.client.errors import with_errors
from app.command.client.generation import (
    add_sampling_options,
    ask,
    sampling_fields,
    served_model,
    show_answer,
    show_choices,
    stats_line,
    write,
)

_PATH = "/v1/chat/completions"
_HELP = """\
/n N       N answers at once; the first one is gone on with
/beams N   beam search of width N; /n 1 ends it
/set F=V   set a field of requests, such as temperature=0
/system T  begin with the system message T
/stats     show tokens and times of each answer, or no longer
/new       forget the conversation
/quit      end, as does Ctrl-D
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pagoda chat`."""
    parser.add_argument(
        "message", nargs="?", help="ask this and end; without it, or a pipe, a conversation begins"
    )
    parser.add_argument("--system", help="a system message to begin with")
    add_sampling_options(parser)
    add_server_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Chat; return the exit code."""
    return with_errors(_run, arguments)


def _run(arguments: argparse.Namespace) -> int:
    fields = sampling_fields(arguments)
    is_asked = arguments.message is not None or sys.stdin is None or not sys.stdin.isatty()
    # before anything is read from a pipe
    system = [{"role": "system", "content": arguments.system}] if arguments.system else []
    prompt = read_prompt(arguments.message) if is_asked else ""
    with connected(find_target(arguments)) as connection:
        model = served_model(connection, arguments.model)
        if is_asked:
            messages = [*system, {"role": "user", "content": prompt}]
            body = {"model": model, "messages": messages, **fields}
            show_answer(connection, _PATH, body, arguments)
        else:
            conversation = Conversation(model=model, fields=fields, messages=system)
            conversation.has_stats = arguments.stats
            _talk(connection, conversation)
    return 0


@dataclass(slots=True, kw_only=True)
class Conversation:
    """What was said, and how answers are asked for."""

    model: str
    fields: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    has_stats: bool = False

    def body(self, text: str) -> Mapping[str, Any]:
        """The request for an answer to `text`."""
        messages = [*self.messages, {"role": "user", "content": text}]
        return {"model": self.model, "messages": messages, **self.fields}

    def note(self, text: str, answer: str) -> None:
        """Go on from an answer."""
        self.messages += [
            {"role": "user", "content": text},
            {"role": "assistant", "content": answer},
        ]

    def command(self, line: str) -> str:
        """Do what a line that begins with / says; returns what is to be shown.

        Raises:
            ValueError: saying what is wrong with the line.
        """
        name, _, value = line.partition(" ")
        value = value.strip()
        if name in ("/n", "/beams"):
            self._choices(name, value)
        elif name == "/set":
            self._set(value)
        elif name == "/system":
            self.messages = [{"role": "system", "content": value}] if value else []
        elif name == "/stats":
            self.has_stats = not self.has_stats
        elif name == "/new":
            self.messages = [each for each in self.messages[:1] if each["role"] == "system"]
        else:
            return _HELP
        return ""

    def _choices(self, name: str, value: str) -> None:
        if not value.isdigit() or not int(value) >= 1:
            raise ValueError(f"{name} wants a number, such as {name} 4")
        self.fields = {k: v for k, v in self.fields.items() if k not in ("n", "use_beam_search")}
        if int(value) > 1:
            self.fields["n"] = int(value)
            if name == "/beams":
                self.fields["use_beam_search"] = True

    def _set(self, text: str) -> None:
        from app.settings.resolved_config import yaml_value
        from engine.errors import ConfigError

        name, is_there, value = text.partition("=")
        if not is_there:
            raise ValueError("/set wants FIELD=VALUE, such as /set temperature=0")
        try:
            self.fields[name.strip()] = yaml_value(name, value)
        except ConfigError as error:
            raise ValueError(str(error)) from None


def _talk(connection: Connection, conversation: Conversation) -> None:
    # arrow keys and a history for `input`
    import readline  # noqa: F401

    write(f"{conversation.model}; /help shows commands, Ctrl-D ends\n")
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            write("\n")
            return
        if line in ("/quit", "/exit"):
            return
        if line.startswith("/"):
            try:
                write(conversation.command(line))
            except ValueError as error:
                write(f"{error}\n")
        elif line:
            _answer(connection, conversation, line)


def _answer(connection: Connection, conversation: Conversation, text: str) -> None:
    """Ask and show; Ctrl-C ends this answer only, and the request with it."""
    is_single = conversation.fields.get("n", 1) == 1
    try:
        answer = ask(connection, _PATH, conversation.body(text), write if is_single else None)
    except KeyboardInterrupt:
        write("\n(stopped)\n")
        return
    except Refused as error:
        write(f"error: {error}\n")
        return
    if is_single:
        write("\n")
    else:
        show_choices(answer)
    conversation.note(text, answer.texts.get(0, ""))
    if conversation.has_stats:
        write(f"({stats_line(answer)})\n")
