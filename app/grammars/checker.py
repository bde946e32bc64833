"""The process that finds out whether grammars can be used: `python -m app.grammars.checker`.

A grammar may be made to exhaust the stack, the memory or the time of whoever compiles it. Here it
only ends a process that has nothing else to do. What passes has been compiled and walked through
with a stack that is smaller than that of any worker, which does the same again.

It reads messages from its standard input and writes one answer for each, but for the first, to its
standard output (see `app.grammars.pipe`).
"""

import random
import re
import resource
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from app.grammars.conversion import to_grammar
from app.grammars.pipe import read_message, write_message
from engine.types import GRAMMAR_LIMITS

_STACK_BYTES = 1 << 20
_MEMORY_BYTES = 4 << 30
# tokens of the walk through a grammar
_MAX_STEPS = 24
# processor time of one mask; ordinary ones take 0.05 ms, a few of them up to 10 ms
_MAX_STEP_S = 0.1


class GrammarChecker:
    """Checks grammars for one tokenizer."""

    def __init__(self, tokenizer: str, end_ids: list[int]) -> None:
        """Args: tokenizer: the content of tokenizer.json."""
        self._tokenizer = LLTokenizer(tokenizer, eos_token=end_ids)
        self._end_ids = frozenset(end_ids)
        self._limits = LLParserLimits(**GRAMMAR_LIMITS)

    def check(self, parts: dict[str, Any]) -> dict[str, str]:
        """Answer with the grammar, or with an error in words for the client."""
        try:
            grammar = to_grammar(**parts)
            matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
            self._walk(matcher)
        except ValueError as error:
            return {"error": _one_line(str(error))}
        return {"grammar": grammar}

    def _walk(self, matcher: LLMatcher) -> None:
        """Follow a grammar for some tokens, the same ones each time."""
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        draw = random.Random(0)
        for step in range(_MAX_STEPS):
            started_s = time.thread_time()
            mask = matcher.compute_bitmask()
            if matcher.is_error():
                nothing = "no text matches it"
                raise ValueError(matcher.get_error() if step else matcher.get_error() or nothing)
            bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
            tokens = [token for token in bits.nonzero()[0].tolist() if token not in self._end_ids]
            if not tokens:
                if not matcher.is_accepting():
                    raise ValueError("no text matches it")
                return
            matcher.consume_token(draw.choice(tokens))
            if time.thread_time() - started_s > _MAX_STEP_S:
                raise ValueError("it takes too long to follow")


def _one_line(error: str) -> str:
    """What is wrong, without the text that is said to be, which may be long."""
    line = " ".join(error.replace("<non-verbose/>", "").split())
    found = re.search(r"error: (.{1,200}?)(?: \d+ \| |$)", line)
    return found[1] if found else line


def _serve() -> None:
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    settings = read_message(requests)
    if settings is None:
        return
    check = _make_check(settings)
    while (parts := read_message(requests)) is not None:
        write_message(answers, check(parts))


def _make_check(settings: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, str]]:
    try:
        return GrammarChecker(**settings).check
    except ValueError as error:
        reason = f"it cannot be used with this model's tokenizer: {_one_line(str(error))}"
        return lambda parts: {"error": reason}


def main() -> None:
    """Serve until the other end closes the pipe."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=_serve, daemon=True)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
