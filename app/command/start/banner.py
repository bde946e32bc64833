"""What is said when a server is ready: where it is, what fits, and a request that can be copied."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
# what the example asks
QUESTION = "Hi!"
_MAX_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a server that is ready.

    Attributes:
        url: of the application, without a slash at its end.
        host: that it listens on.
        capacity_slots, block_size: KV tokens of one replica, and of a block; 0 for not known.
        num_replicas: of the engine.
        max_num_seqs: in the batch at once.
        max_model_len: longest prompt plus output in tokens.
        has_chat: whether the model has a chat template.
        api_keys_file: that tenants' keys are in, if any.
        has_page: whether the page `/ui` is served.
    """

    url: str
    host: str
    model: str
    max_model_len: int
    max_num_seqs: int
    has_chat: bool
    capacity_slots: int = 0
    block_size: int = 0
    num_replicas: int = 1
    api_keys_file: Path | None = None
    has_page: bool = True


def banner(facts: Facts, started_s: float) -> list[str]:
    """The lines, of which the last two are a command for a shell.

    Args:
        started_s: seconds that the start took.
    """
    lines = [f"Ready after {started_s:.0f} s", f"  API   {facts.url}/v1{_page(facts)}"]
    lines += [f"  Fits  {text}" for text in _fits(facts)]
    lines.append(f"  Keys  {_keys(facts)}")
    first, *rest = curl(facts)
    return [*lines, f"  Try   {first}", *(f"        {line}" for line in rest)]


def short(path: Path) -> str:
    """A path with ~ for the home folder."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def curl(facts: Facts) -> list[str]:
    """A command that asks for a short answer; its lines are joined by backslashes."""
    path, body = example(facts.model, has_chat=facts.has_chat)
    head = f"curl -s {facts.url}{path} -H 'content-type: application/json'"
    if facts.api_keys_file is not None:
        key = f"$(head -n1 {shlex.quote(str(facts.api_keys_file))})"
        head += f' -H "authorization: Bearer {key}"'
    # json writes other characters than ASCII as escapes, so that any shell takes them
    return [f"{head} \\", f"-d {shlex.quote(json.dumps(body, separators=(',', ':')))}"]


def example(model: str, *, has_chat: bool) -> tuple[str, dict[str, object]]:
    """Path and body of the request that a banner shows."""
    # a small model does not always come to an end by itself
    limit = {"max_tokens": _MAX_TOKENS}
    if has_chat:
        messages = [{"role": "user", "content": QUESTION}]
        return "/v1/chat/completions", {"model": model, "messages": messages, **limit}
    return "/v1/completions", {"model": model, "prompt": QUESTION, **limit}


def _page(facts: Facts) -> str:
    return f"    Page  {facts.url}/ui" if facts.has_page else ""


def _fits(facts: Facts) -> Sequence[str]:
    sequences = f"{facts.max_num_seqs} sequences at once"
    if not facts.capacity_slots or not facts.block_size:
        return [f"contexts of up to {facts.max_model_len:,} tokens, {sequences}"]
    blocks = facts.capacity_slots // facts.block_size
    contexts = facts.capacity_slots // max(1, facts.max_model_len)
    full = f"{contexts} full context{'s' * (contexts != 1)} of {facts.max_model_len:,}"
    each = f", in each of {facts.num_replicas} replicas" if facts.num_replicas > 1 else ""
    return [
        f"{facts.capacity_slots:,} KV tokens ({blocks:,} blocks of {facts.block_size}): {full}, "
        f"{sequences}{each}"
    ]


def _keys(facts: Facts) -> str:
    if facts.api_keys_file is not None:
        return f"one of {short(facts.api_keys_file)}"
    if facts.host in _LOOPBACK:
        return "none: this machine only"
    return f"none: everyone who reaches {facts.host} is served; set api_keys_file"
