"""The libraries that are compared: each compiles a schema and follows a text token by token.

Run as `python -m load_tests.bench.grammars.libraries LIBRARY TOKENIZER_JSON EOS_ID`, it reads names
of files of the suite, one a line, and writes what it found of each as a line of JSON. A schema may
kill it.
"""

import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from engine.types import GRAMMAR_LIMITS
from load_tests.bench.grammars.written import NUM_TEXTS, end_ids, judge, write


class Follower(Protocol):
    """A compiled schema behind some tokens."""

    def mask(self) -> NDArray[np.uint8]:
        """Bytes of the bits of what may follow."""
        ...

    def take(self, token: int) -> None:
        """Go on behind a token that may follow."""
        ...


class LlGuidance:
    """llguidance, with the limits of the workers."""

    def __init__(self, tokenizer: str, end_id: int) -> None:
        """Read a tokenizer.json."""
        self._tokenizer = LLTokenizer(tokenizer, eos_token=end_id)
        self._limits = LLParserLimits(**GRAMMAR_LIMITS)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        return self._tokenizer.tokenize_str(text)

    def decode(self, ids: list[int]) -> str:
        """Text of token ids."""
        text: str = self._tokenizer.decode_str(ids)
        return text

    def compile(self, schema: dict[str, Any]) -> Callable[[], Follower]:
        """Compile a schema; the result makes matchers of texts.

        Raises:
            ValueError: if the library refuses it.
        """
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return lambda: _LlFollower(matcher.deep_copy())


class _LlFollower:
    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def mask(self) -> NDArray[np.uint8]:
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        # one that has reached a limit would let the text end anywhere
        return np.zeros_like(mask) if self._matcher.is_error() else mask

    def take(self, token: int) -> None:
        self._matcher.consume_token(token)


class XGrammar:
    """xgrammar as vLLM uses it; not among our packages."""

    def __init__(self, tokenizer: str, end_id: int) -> None:
        """Read a tokenizer.json."""
        import xgrammar
        from transformers import PreTrainedTokenizerFast

        self._library = xgrammar
        make: Any = PreTrainedTokenizerFast
        self._tokenizer = make(tokenizer_file=_as_file(tokenizer))
        info = xgrammar.TokenizerInfo.from_huggingface(self._tokenizer, stop_token_ids=[end_id])
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._vocab_size = info.vocab_size

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, ids: list[int]) -> str:
        """Text of token ids."""
        text: str = self._tokenizer.decode(ids)
        return text

    def compile(self, schema: dict[str, Any]) -> Callable[[], Follower]:
        """Compile a schema; the result makes matchers of texts.

        Raises:
            ValueError: if the library refuses it.
        """
        try:
            compiled = self._compiler.compile_json_schema(
                json.dumps(schema), any_whitespace=True, strict_mode=False
            )
        except RuntimeError as error:
            raise ValueError(str(error)) from error
        library = self._library
        return lambda: _XFollower(library, library.GrammarMatcher(compiled), self._vocab_size)


class _XFollower:
    def __init__(self, library: Any, matcher: Any, vocab_size: int) -> None:
        self._matcher = matcher
        self._bits: torch.Tensor = library.allocate_token_bitmask(1, vocab_size)

    def mask(self) -> NDArray[np.uint8]:
        self._bits.fill_(-1)
        self._matcher.fill_next_token_bitmask(self._bits)
        bits: NDArray[np.uint8] = self._bits.numpy()[0].view(np.uint8)
        return bits

    def take(self, token: int) -> None:
        self._matcher.accept_token(token)


LIBRARIES: dict[str, type[LlGuidance] | type[XGrammar]] = {
    "llguidance": LlGuidance,
    "xgrammar": XGrammar,
}


def look_at(library: LlGuidance | XGrammar, end_id: int, case: dict[str, Any]) -> dict[str, Any]:
    """Compile the schema of a case of the suite, and follow its texts.

    Returns:
        `error`, if it is refused; else seconds to compile and for each mask, how many valid texts
        were refused and invalid ones let through, and of those that are written at random how many
        ended and how many of these do not match.
    """
    started_s = time.perf_counter()
    try:
        follow = library.compile(case["schema"])
    except ValueError as error:
        return {"error": str(error)[:200]}
    found: dict[str, Any] = {"compile_s": time.perf_counter() - started_s, "mask_s": []}
    found["num_refused"] = found["num_let_through"] = 0
    for test in case["tests"]:
        ids = [*library.encode(json.dumps(test["data"], ensure_ascii=False)), end_id]
        is_accepted = _follows(follow(), ids, found["mask_s"])
        found["num_refused"] += test["valid"] and not is_accepted
        found["num_let_through"] += is_accepted and not test["valid"]
    return found | _written(library, end_id, case["schema"])


def _written(library: LlGuidance | XGrammar, end_id: int, schema: dict[str, Any]) -> dict[str, int]:
    ends, rng = end_ids(library.encode), random.Random(0)
    # each compiled for itself: what shares a lexer fills it together
    written = [write(library.compile(schema)(), end_id, ends, rng) for _ in range(NUM_TEXTS)]
    texts = [library.decode(ids) for ids in written if ids is not None]
    try:
        return {"num_written": len(texts), "num_mismatched": len(judge(schema, texts))}
    except ValueError:
        return {"num_written": 0, "num_mismatched": 0}


def _follows(follower: Follower, ids: list[int], times_s: list[float]) -> bool:
    for token in ids:
        started_s = time.perf_counter()
        mask = follower.mask()
        times_s.append(time.perf_counter() - started_s)
        if not mask[token // 8] >> (token % 8) & 1:
            return False
        follower.take(token)
    return True


def _as_file(content: str) -> str:
    import tempfile

    path = Path(tempfile.mkdtemp()) / "tokenizer.json"
    path.write_text(content, encoding="utf-8")
    return str(path)


def main(name: str, tokenizer: str, end_id: str) -> None:
    """Answer for each line of the standard input."""
    library = LIBRARIES[name](Path(tokenizer).read_text(encoding="utf-8"), int(end_id))
    for line in sys.stdin:
        case = json.loads(Path(line.strip()).read_text(encoding="utf-8"))
        print(json.dumps(look_at(library, int(end_id), case)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
