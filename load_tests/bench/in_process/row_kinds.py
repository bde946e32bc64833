"""What the rows of timed steps ask for beside their next token."""

import json
import random
import string
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from llguidance import LLMatcher

from engine.types import SamplingParams
from load_tests.bench.grammars.endless import endless_schema
from load_tests.local_engine import greedy


def with_schema(sampling: SamplingParams, schema: str) -> SamplingParams:
    """Bind the text by a JSON schema, without white space between its parts."""
    options: Any = {"whitespace_flexible": False}
    grammar = LLMatcher.grammar_from_json_schema(schema, overrides=options)
    return replace(sampling, grammar=grammar)


# name -> what it makes of parameters that ask for nothing
KINDS: dict[str, Callable[[SamplingParams], SamplingParams]] = {
    "plain": lambda sampling: sampling,
    "penalties": lambda sampling: replace(
        sampling, frequency_penalty=0.5, presence_penalty=0.5, repetition_penalty=1.1
    ),
    "bias": lambda sampling: replace(sampling, logit_bias=tuple((i, 1.0) for i in range(300))),
    "grammar": lambda sampling: with_schema(sampling, endless_schema()),
}


def sampling_of(kind: str, output_len: int) -> SamplingParams:
    """Parameters of a row that samples so many tokens."""
    return KINDS[kind](greedy(output_len))


def write_tokenizer(folder: Path, num_tokens: int) -> None:
    """Write a tokenizer.json of random words, for a model with random weights; all bytes first."""
    draw = random.Random(0)
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [256 + place for place in range(256 - len(printable))]
    words = dict.fromkeys(chr(code) for code in (*printable, *others))
    # as many as real ones begin with a space, which byte-level tokenizers write as U+0120
    while len(words) < num_tokens:
        word = "".join(draw.choices(string.ascii_letters, k=draw.randint(2, 9)))
        words[draw.choice(("", "\u0120")) + word] = None
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    content = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {word: place for place, word in enumerate(words)},
            "merges": [],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
