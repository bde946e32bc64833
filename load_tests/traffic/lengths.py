"""Lengths of requests: fixed, the paper's data sets as quantiles, or pairs from a file."""

import bisect
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol

from load_tests.traffic.tables import integer, read_rows

# the longest context of the paper's models; its traces keep input + output below this
MAX_TOTAL_LEN = 2048

PERCENTILES = (
    *(0, 0.5, 1, 2.5, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55),
    *(60, 65, 70, 75, 80, 85, 90, 92.5, 95, 97.5, 99, 99.5, 99.9, 100),
)

# ShareGPT: first human turn and first answer, OPT's tokenizer, start token counted; percentiles of
# the 79,731 length pairs with a sum of at most 2048 that the paper's authors published
# (https://github.com/sosp-ae-39/sosp-ae-astra). Means 161.3 and 338.0, as in the paper's figure 11.
SHAREGPT_INPUT = (
    *(1, 2, 2, 4, 7, 9, 11, 13, 15, 18, 21, 24, 29, 35, 44),
    *(55, 71, 94, 133, 203, 324, 507, 655, 864, 1147, 1464, 1639, 1873, 2028),
)
SHAREGPT_OUTPUT = (
    *(1, 2, 4, 10, 22, 45, 75, 101, 128, 157, 188, 216, 244, 271, 300),
    *(330, 364, 405, 458, 525, 619, 754, 799, 899, 1092, 1280, 1443, 1706, 2009),
)
# Alpaca: percentiles of 9,229 rows drawn evenly from its 52,002 (https://github.com/gpt4life/alpagasus),
# prompt = instruction and input, GPT-2's tokenizer, one start token added on both sides.
# Means 18.95 and 58.92; the paper prints 19.31 and 58.45.
ALPACA_INPUT = (
    *(5, 6, 7, 8, 8, 10, 10, 11, 12, 12, 13, 14, 15, 15, 16),
    *(17, 19, 20, 22, 24, 27, 31, 34, 40, 52, 72, 87, 128, 314),
)
ALPACA_OUTPUT = (
    *(1, 2, 2, 3, 4, 7, 10, 12, 14, 17, 21, 27, 34, 43, 52),
    *(61, 69, 78, 87, 97, 109, 127, 140, 160, 207, 274, 315, 510, 931),
)


class Lengths(Protocol):
    """A distribution of (input, output) lengths in tokens."""

    def draw(self, random: Random) -> tuple[int, int]:
        """Draw one pair; only `random` changes."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLengths:
    """Every request alike."""

    input_len: int
    output_len: int

    def draw(self, random: Random) -> tuple[int, int]:
        return self.input_len, self.output_len


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileLengths:
    """Input and output drawn independently by the inverse distribution, linear between quantiles.

    Attributes:
        input_quantiles, output_quantiles: lengths at `PERCENTILES`.
        max_total_len: pairs that sum to this or more are drawn again.
    """

    input_quantiles: tuple[int, ...]
    output_quantiles: tuple[int, ...]
    max_total_len: int = MAX_TOTAL_LEN

    def draw(self, random: Random) -> tuple[int, int]:
        while True:
            input_len = quantile(self.input_quantiles, 100 * random.random())
            output_len = quantile(self.output_quantiles, 100 * random.random())
            if input_len + output_len < self.max_total_len:
                return input_len, output_len


@dataclass(frozen=True, slots=True)
class PairLengths:
    """Pairs drawn with replacement from recorded ones, so that input and output stay correlated."""

    pairs: tuple[tuple[int, int], ...]

    def draw(self, random: Random) -> tuple[int, int]:
        return self.pairs[int(random.random() * len(self.pairs))]


def quantile(lengths: tuple[int, ...], percentile: float) -> int:
    """Length at a percentile in [0, 100], linear between the tabulated `PERCENTILES`, rounded."""
    right = bisect.bisect_right(PERCENTILES, percentile)
    if right == len(PERCENTILES):
        return lengths[-1]
    share = (percentile - PERCENTILES[right - 1]) / (PERCENTILES[right] - PERCENTILES[right - 1])
    return round(lengths[right - 1] + share * (lengths[right] - lengths[right - 1]))


def parse_lengths(text: str, max_total_len: int = MAX_TOTAL_LEN) -> Lengths:
    """Read `fixed:INPUT:OUTPUT`, `sharegpt`, `alpaca`, or the path of a CSV or JSONL file of pairs.

    Args:
        text: the specification.
        max_total_len: tokens; drawn pairs stay below it. Fixed lengths are taken as they are.

    Raises:
        ValueError: if the specification or the file cannot be used.
    """
    if text.startswith("fixed:"):
        return _fixed(text)
    if max_total_len < 64:
        raise ValueError(f"a total length below {max_total_len} tokens leaves nothing to draw from")
    if text == "sharegpt":
        return QuantileLengths(
            input_quantiles=SHAREGPT_INPUT,
            output_quantiles=SHAREGPT_OUTPUT,
            max_total_len=max_total_len,
        )
    if text == "alpaca":
        return QuantileLengths(
            input_quantiles=ALPACA_INPUT,
            output_quantiles=ALPACA_OUTPUT,
            max_total_len=max_total_len,
        )
    return _pairs(Path(text), max_total_len)


def _fixed(text: str) -> FixedLengths:
    parts = text.split(":")[1:]
    if len(parts) != 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"{text!r} is not fixed:INPUT:OUTPUT with two numbers of at least 1")
    return FixedLengths(int(parts[0]), int(parts[1]))


def _pairs(path: Path, max_total_len: int) -> PairLengths:
    if not path.is_file():
        raise ValueError(f"lengths {str(path)!r}: not fixed:I:O, sharegpt, alpaca or a file")
    pairs = [
        (integer(row, "input_length"), integer(row, "output_length")) for row in read_rows(path)
    ]
    kept = tuple(pair for pair in pairs if sum(pair) < max_total_len)
    if not kept:
        raise ValueError(f"{path} has no pair of lengths below {max_total_len} tokens in all")
    return PairLengths(kept)
