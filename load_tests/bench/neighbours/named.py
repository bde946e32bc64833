"""Requests that once held up a whole server, each with the size that did it."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from load_tests.bench.neighbours.fillings import UnmadeRequest, as_json

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TOKENIZE, DETOKENIZE, PREFIXES = "/tokenize", "/detokenize", "/v1/prefixes"
NUM_BYTES = 4_000_000
# one token each, so that a prompt has the length that is meant
WORD = " a"


def named(num_tokens: int, num_copies: int) -> Iterator[UnmadeRequest]:
    """Yield the requests.

    Args:
        num_tokens: of long prompts that fit the model's context.
        num_copies: of those requests that are many at once.
    """
    yield from _refused_bodies()
    yield from _large_answers(num_tokens)
    yield from _costly_texts()
    name = f"{num_copies} prompts of 4 MB at once"
    many = partial(as_json, {"prompt": "word " * (NUM_BYTES // 5)})
    yield UnmadeRequest(name=name, path=COMPLETIONS, make_body=many, copies=num_copies)


def _refused_bodies() -> Iterator[UnmadeRequest]:
    many = NUM_BYTES // 2
    keys = {f"k{number:07}": 1 for number in range(NUM_BYTES // 13)}
    hello = {"role": "user", "content": "Hello"}
    yield _chat("content parts that are numbers", [{"role": "user", "content": [1] * many}])
    yield _chat("documents that are numbers", [hello], documents=[1] * many)
    yield _chat("metadata of numbers", [hello], metadata=keys)
    yield _chat("unknown keys in stream_options", [hello], stream=True, stream_options=keys)
    yield _chat("unknown keys in a message", [{**hello, **keys}])
    yield _chat("many small lists", [hello], documents=[[]] * (NUM_BYTES // 3))
    yield _chat("messages of many parts", [{"role": "user", "content": _parts(100)}] * 600)
    yield _chat("as many lists as allowed", [hello], documents=[[[]] * 500] * 125)
    yield _chat("as many values as allowed", [hello], documents=[[1] * 2000] * 125)
    texts = ["a"] * (NUM_BYTES // 4)
    yield _request("a list of texts as a prefix", PREFIXES, name="a", prompt=texts)
    yield _request("2 million ids to decode", DETOKENIZE, tokens=[5] * many)
    yield _request("250,000 ids to decode", DETOKENIZE, tokens=[5] * 250_000)
    yield _request("an id of a million digits", DETOKENIZE, raw='{"tokens":[' + "9" * 10**6 + "]}")
    yield _request("lists inside each other", COMPLETIONS, raw="[" * 10**6)
    yield _request("objects inside each other", COMPLETIONS, raw='{"a":' * 500_000)


def _large_answers(num_tokens: int) -> Iterator[UnmadeRequest]:
    long, half = WORD * num_tokens, WORD * (num_tokens // 2)
    score: dict[str, Any] = {"max_tokens": 0, "echo": True}
    few: dict[str, Any] = {"max_tokens": 1, "temperature": 1.0}
    yield _request("echo, logprobs, n 128", COMPLETIONS, prompt=long, n=128, logprobs=5, **score)
    yield _request("prompt_logprobs, n 128", COMPLETIONS, prompt=half, n=128, prompt_logprobs=20)
    yield _request("echo of a long prompt, n 60", COMPLETIONS, prompt=long, n=60, echo=True, **few)
    yield _request("echo, logprobs, n 10", COMPLETIONS, prompt=long, n=10, logprobs=4, **score)
    yield _request("prompt_logprobs, n 5", COMPLETIONS, prompt=half, n=5, prompt_logprobs=20, **few)
    yield _request("ids of a long prompt, n 60", COMPLETIONS, prompt=long, n=60, **few,
                   return_token_ids=True)  # fmt: skip
    hello = [{"role": "user", "content": half}]
    yield _chat("scores of a long chat", hello, prompt_logprobs=20, max_tokens=1)
    yield _chat("log-probabilities of a chat", [{"role": "user", "content": "Hi"}], logprobs=True,
                top_logprobs=20, n=128, max_tokens=64)  # fmt: skip


def _costly_texts() -> Iterator[UnmadeRequest]:
    stops = [letter * 256 for letter in ("a", " ", "e", "\u20ac")]
    beams: dict[str, Any] = {"use_beam_search": True, "n": 2, "max_tokens": 2}
    yield _request("a beam's long stop strings", COMPLETIONS, prompt="Hi", stop=stops, **beams)
    control = "<|im_start|>" * (NUM_BYTES // 12)
    yield _chat("a message of control tokens", [{"role": "user", "content": control}])
    yield _chat("2,048 messages", [{"role": "user", "content": "a b c"}] * 2048)
    yield _request("a text to tokenise", TOKENIZE, prompt="x7 " * 200_000, return_token_strs=True)
    yield _request("an emoji a character", TOKENIZE, prompt="\U0001f5ff" * 150_000)
    yield _request("128 prompts with echo", COMPLETIONS, prompt=["x7 y " * 200] * 128, echo=True,
                   max_tokens=0)  # fmt: skip
    yield _request("128 bad words", COMPLETIONS, prompt="Hi", bad_words=["x y " * 64] * 128)


def _chat(title: str, messages: list[Any], /, **fields: Any) -> UnmadeRequest:
    return _request(title, CHAT, messages=messages, **fields)


def _request(title: str, path: str, /, *, raw: str | None = None, **fields: Any) -> UnmadeRequest:
    body: Callable[[], bytes] = partial(as_json, fields) if raw is None else raw.encode
    return UnmadeRequest(name=title, path=path, make_body=body)


def _parts(count: int) -> list[dict[str, str]]:
    return [{"type": "text", "text": "a"}] * count
