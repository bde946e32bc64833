"""Asks a server for text and shows it as it comes."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from app.command.client.connection import Connection, Refused
from app.settings.resolved_config import yaml_value


@dataclass(slots=True, kw_only=True)
class ShownAnswer:
    """What came of a request.

    Attributes:
        texts: by the index of the choice.
        first_s, total_s: seconds until the first text and until the end.
    """

    texts: dict[int, str] = field(default_factory=dict)
    usage: Mapping[str, Any] = field(default_factory=dict)
    first_s: float = 0.0
    total_s: float = 0.0


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Add what a request may say beside its text."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--model", help="as the server calls it (default: the one that it serves)")
    group.add_argument("-n", type=int, default=1, help="answers (default: 1)")
    group.add_argument("--beams", type=int, help="beam search of this width")
    group.add_argument("--max-tokens", type=int, help="most tokens of an answer")
    group.add_argument("--temperature", type=float, help="0 for the likeliest tokens")
    group.add_argument(
        "--body",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="any field of the request with a YAML value, such as top_p=0.9",
    )
    parser.add_argument(
        "--stats", action="store_true", help="end with tokens and times, on standard error"
    )
    parser.add_argument("--json", action="store_true", help="print the whole answer as JSON")


def sampling_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fields of a request from the command line.

    Raises:
        ConfigError: if a value is no YAML.
    """
    fields: dict[str, Any] = {}
    for text in arguments.body:
        name, _, value = text.partition("=")
        fields[name] = yaml_value(name, value)
    for name in ("max_tokens", "temperature"):
        if (value := getattr(arguments, name)) is not None:
            fields[name] = value
    if arguments.beams:
        fields |= {"use_beam_search": True, "n": arguments.beams}
    elif arguments.n > 1:
        fields["n"] = arguments.n
    return fields


def served_model(connection: Connection, wanted: str | None) -> str:
    """The name for requests: the one wanted, or what the server has."""
    if wanted is not None:
        return wanted
    return str(connection.get("/v1/models")["data"][0]["id"])


def ask(
    connection: Connection,
    path: str,
    body: Mapping[str, Any],
    on_text: Callable[[str], None] | None = None,
) -> ShownAnswer:
    """Ask for a stream and take it in.

    Args:
        on_text: called with each piece of the first choice; None for nobody.

    Raises:
        NoServer, Refused: see `Connection`.
    """
    started_s = time.perf_counter()
    answer = ShownAnswer()
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    for data in connection.stream(path, {**body, **stream}):
        chunk = json.loads(data)
        if "error" in chunk:
            raise Refused(str(chunk["error"].get("message", chunk["error"])))
        answer.usage = chunk.get("usage") or answer.usage
        for index, text in _texts(chunk):
            answer.first_s = answer.first_s or time.perf_counter() - started_s
            answer.texts[index] = answer.texts.get(index, "") + text
            if on_text is not None and index == 0:
                on_text(text)
    answer.total_s = time.perf_counter() - started_s
    return answer


def show_answer(
    connection: Connection, path: str, body: Mapping[str, Any], arguments: argparse.Namespace
) -> None:
    """Ask once and show what comes, as the command line wants it.

    Raises:
        NoServer, Refused: see `Connection`.
    """
    if arguments.json:
        write(json.dumps(connection.post(path, body), indent=2, ensure_ascii=False) + "\n")
        return
    is_single = int(body.get("n", 1)) == 1
    answer = ask(connection, path, body, write if is_single else None)
    if is_single:
        write("\n")
    else:
        show_choices(answer)
    if arguments.stats:
        sys.stderr.write(stats_line(answer) + "\n")


def write(text: str) -> None:
    """Show a piece of an answer at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def show_choices(answer: ShownAnswer) -> None:
    """Show several answers below each other."""
    for index, text in sorted(answer.texts.items()):
        write(f"[{index + 1}] {text.strip()}\n")


def stats_line(answer: ShownAnswer) -> str:
    """Tokens and times of an answer."""
    usage = answer.usage
    prompt, out = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    decode_s = answer.total_s - answer.first_s
    rate = f", {(out - 1) / decode_s:.1f} tokens/s" if out > 1 and decode_s > 0 else ""
    return (
        f"{prompt} prompt tokens ({cached} cached), {out} tokens, first after "
        f"{answer.first_s * 1e3:.0f} ms, all after {answer.total_s:.2f} s{rate}"
    )


def _texts(chunk: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    for choice in chunk.get("choices") or []:
        delta = choice.get("delta")
        text = choice.get("text") if delta is None else delta.get("content")
        if text:
            yield int(choice["index"]), text
