"""Lengths like ShareGPT's and Alpaca's from two log-normal distributions: nothing but a seed."""

import math
from dataclasses import dataclass
from random import Random

SHORTEST = 4


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A distribution of lengths: their mean in tokens and the spread of their logarithms."""

    mean: float
    sigma: float

    def draw(self, random: Random, count: int, longest: int) -> list[int]:
        """Draw lengths from `SHORTEST` to below `longest`, with the mean as far as that allows."""
        location = math.log(self.mean) - self.sigma**2 / 2
        raw = [random.lognormvariate(location, self.sigma) for _ in range(count)]
        cut = [min(max(length, SHORTEST), longest) for length in raw]
        # cutting lowers the mean, and few requests miss it by chance
        scale = self.mean * count / sum(cut) if count else 1.0
        return [min(max(round(length * scale), SHORTEST), longest - 1) for length in cut]


# inputs and outputs; the means are those of the paper's figure 11
TRACES = {
    "sharegpt": (LogNormal(161.31, 1.2), LogNormal(337.99, 0.85)),
    "alpaca": (LogNormal(19.31, 0.55), LogNormal(58.45, 0.75)),
}


def draw_pairs(trace: str, num_requests: int, seed: int) -> list[tuple[int, int]]:
    """Draw (input, output) lengths, each below half of the paper's longest context.

    Raises:
        ValueError: if there is no such trace.
    """
    if trace not in TRACES:
        raise ValueError(f"trace {trace!r} is not one of {', '.join(TRACES)}")
    random = Random(f"{seed} {trace}")
    inputs, outputs = (shape.draw(random, num_requests, 1024) for shape in TRACES[trace])
    return list(zip(inputs, outputs, strict=True))
