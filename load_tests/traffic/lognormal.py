"""Lengths like ShareGPT's and Alpaca's from two log-normal distributions: nothing but a seed."""

import math
from dataclasses import dataclass
from random import Random

SHORTEST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Means in tokens and the spread of their logarithms.

    The means are those of the paper's figure 11; they come out a little lower, since lengths are
    cut at half of the longest context.
    """

    input_mean: float
    output_mean: float
    input_sigma: float
    output_sigma: float


TRACES = {
    "sharegpt": Trace(input_mean=161.31, output_mean=337.99, input_sigma=1.2, output_sigma=0.85),
    "alpaca": Trace(input_mean=19.31, output_mean=58.45, input_sigma=0.55, output_sigma=0.75),
}


def draw_pairs(
    trace: str, num_requests: int, seed: int, max_total_len: int = 2048
) -> list[tuple[int, int]]:
    """Draw (input, output) lengths, each below half of `max_total_len`.

    Raises:
        ValueError: if there is no such trace, or no room for the shortest request.
    """
    if trace not in TRACES:
        raise ValueError(f"trace {trace!r} is not one of {', '.join(TRACES)}")
    if max_total_len < 4 * SHORTEST:
        raise ValueError(f"max_total_len {max_total_len} is below {4 * SHORTEST}")
    shape, random = TRACES[trace], Random(f"{seed} {trace}")
    longest = max_total_len // 2
    inputs = _draw(random, num_requests, shape.input_mean, shape.input_sigma, longest)
    outputs = _draw(random, num_requests, shape.output_mean, shape.output_sigma, longest)
    return list(zip(inputs, outputs, strict=True))


def _draw(random: Random, count: int, mean: float, sigma: float, longest: int) -> list[int]:
    location = math.log(mean) - sigma**2 / 2
    raw = [random.lognormvariate(location, sigma) for _ in range(count)]
    cut = [min(max(length, SHORTEST), longest) for length in raw]
    # cutting lowers the mean, and few requests miss it by chance
    scale = mean * count / sum(cut) if count else 1.0
    return [min(max(round(length * scale), SHORTEST), longest - 1) for length in cut]
