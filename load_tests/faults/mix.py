"""The requests that are open while a fault happens: every way of decoding, plain and streamed."""

import random
from dataclasses import dataclass
from typing import Any

# seed and sampling fields are part of a request, so its answer is the same whenever it is computed
_GREEDY: dict[str, Any] = {"temperature": 0}
_KINDS: dict[str, dict[str, Any]] = {
    "greedy": _GREEDY,
    "seeded": {"temperature": 1.0, "top_p": 0.9},
    "n=3": {"temperature": 1.0, "n": 3},
    "best_of": {"temperature": 1.0, "n": 2, "best_of": 4},
    "beams": {"use_beam_search": True, "n": 4},
    "logprobs": {"temperature": 1.0, "logprobs": 3},
    "penalties": {"temperature": 0.7, "frequency_penalty": 1.0, "min_tokens": 8},
    "stop string": _GREEDY,
}
_UNSTREAMED = frozenset({"best_of"})
MIN_PROMPT_LEN, MAX_PROMPT_LEN = 8, 96


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedRequest:
    """One request.

    Attributes:
        kind: which way of decoding it stands for.
        body: of POST /v1/completions.
    """

    kind: str
    body: dict[str, Any]

    @property
    def is_streamed(self) -> bool:
        """Whether its answer comes as server-sent events."""
        return bool(self.body.get("stream"))


def draw_cases(
    count: int, *, seed: int, vocab_size: int, output_len: int, fields: dict[str, Any]
) -> list[MixedRequest]:
    """Draw requests, all kinds equally often, half of them streamed where that can be.

    Args:
        vocab_size: prompt ids are below it.
        output_len: tokens of each choice.
        fields: further ones, of every body.
    """
    rng = random.Random(seed)
    kinds = list(_KINDS)
    common = fields | {"max_tokens": output_len, "ignore_eos": True}
    return [_draw(kinds[index % len(kinds)], rng, vocab_size, common) for index in range(count)]


def _draw(kind: str, rng: random.Random, vocab_size: int, common: dict[str, Any]) -> MixedRequest:
    length = rng.randint(MIN_PROMPT_LEN, MAX_PROMPT_LEN)
    # the first ids are often control tokens
    prompt = [rng.randrange(256, vocab_size) for _ in range(length)]
    body: dict[str, Any] = {"prompt": prompt, **common, **_KINDS[kind]}
    if not body.get("use_beam_search"):
        body["seed"] = rng.randrange(2**31)
    if kind not in _UNSTREAMED and rng.random() < 0.5:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return MixedRequest(kind=kind, body=body)


def with_stop(case: MixedRequest, text: str) -> MixedRequest:
    """The same request, ended by a stop string that lies in the middle of its undisturbed text."""
    middle = len(text) // 2
    return MixedRequest(kind=case.kind, body=case.body | {"stop": [text[middle : middle + 4]]})
