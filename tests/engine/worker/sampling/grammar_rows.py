"""Rows that have grammars, and steps that know their tokens."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from llguidance import LLMatcher
from tokenizers import Tokenizer

from engine.types import RowAdmission, SamplingParams, int32
from engine.worker.sampling.grammars import Grammars
from engine.worker.sampling.matchers import StepTokens
from engine.worker.staging import Int32Array
from tests.engine.model.tiny import VOCAB_SIZE
from tests.engine.whole.grammars.tokens import END_ID

_PROMPT = [5, 6, 7]


class KnownStep(StepTokens):
    """A step that knows its tokens; counts how often it was asked."""

    def __init__(self, *tokens: int) -> None:
        self._tokens = tokens
        self.num_asked = 0

    def tokens(self) -> Sequence[int]:
        self.num_asked += 1
        return self._tokens


class GrammarRows:
    """The grammars of some rows."""

    def __init__(
        self,
        folder: Path,
        vocab_size: int = VOCAB_SIZE,
        *,
        num_rows: int = 4,
        num_threads: int = 1,
    ) -> None:
        self._backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._num_words = -(-vocab_size // 32)
        self.grammars = Grammars(num_rows, vocab_size, folder, (END_ID,), num_threads=num_threads)

    def admit(
        self, row: int, pattern: str | None, output: Sequence[int] = (), stop: tuple[int, ...] = ()
    ) -> None:
        grammar = None if pattern is None else LLMatcher.grammar_from_regex(pattern)
        sampling = SamplingParams(max_tokens=9, grammar=grammar, stop_token_ids=stop)
        known = int32([*_PROMPT, *output])
        self.grammars.admit(
            [RowAdmission(row=row, sampling=sampling, prompt_len=3, known_tokens=known)]
        )

    def id(self, text: str) -> int:
        [token] = self._backend.encode(text, add_special_tokens=False).ids
        return int(token)

    def allowed(self, row: int, num_output: int) -> set[int]:
        [mask] = self.masks(ints(row), ints(num_output))
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        return set(bits.nonzero()[0].tolist())

    def masks(self, rows: Int32Array, num_output: Int32Array) -> Int32Array:
        # what is left of the last ones must not matter
        masks = np.full((len(rows), self._num_words), 0x55555555, np.int32)
        self.grammars.ask(rows, num_output).write(masks)
        return masks

    def ids(self, texts: str) -> set[int]:
        return {self.id(text) for text in texts}


def ints(*values: int) -> Int32Array:
    return np.array(values, np.int32)
