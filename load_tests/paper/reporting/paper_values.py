"""The numbers that the paper prints, and the bands around them."""

import math

from load_tests.paper.experiments.cells import SYSTEMS

# least and most
Band = tuple[float, float]
PAGED, ORACLE, POW2, MAX, FASTER = (label for label, _ in SYSTEMS.values())
# where the plots of the paper end. Batches of FasterTransformer reach `SUSTAINED_S` at little load,
# as a request of few tokens is answered with its whole batch; here the queue decides
TOP_S = 1.0
# shares of slots and batches of paged / Oracle / Pow2 / Max: printed in the figures; of figure 2
# the first three and in the text
MEANS = {
    "2": (96.3, 38.2, 26.8, 20.4),
    "13a": (30.42, 13.62, 9.81, 7.00),
    "13b": (132.44, 72.75, 43.24, 7.00),
}
SAVINGS = {
    ("15a", "Alpaca"): (6.1, 9.8),
    ("15a", "ShareGPT"): (16.2, 30.5),
    ("15b", "Alpaca"): (37.6, 55.2),
    ("15b", "ShareGPT"): (44.3, 66.3),
}
# with ShareGPT, for which the paper gives the range over all three models
OVER_MAX = (MAX, "2.7 to 8 over all models", (2.7, 8.0))
OVER_FASTER = (FASTER, "up to 22 over all models", (2.7, 22.0))
# sustained rate of the paged system as a multiple of a baseline's: paper's words, band; of 14 only
# where the engine runs
GAINS: dict[str, tuple[tuple[str, str, Band], ...]] = {
    "12a": ((ORACLE, "1.7 to 2.7 over all models", (1.5, 2.2)), OVER_MAX, OVER_FASTER),
    "12b": ((ORACLE, "1.7 to 2.7 over all models", (1.5, 2.7)), OVER_MAX, OVER_FASTER),
    "12c": ((ORACLE, "1.7 to 2.7 over all models", (1.5, 2.7)), OVER_MAX, OVER_FASTER),
    "12d": ((ORACLE, "1.3", (1.2, 1.5)),),
    "12e": ((ORACLE, "above 1", (1.0, 3.0)),),
    "12f": ((ORACLE, "less than in d", (1.0, 1.2)),),
    "14b": ((ORACLE, "above 1.3", (1.2, 2.6)),),
    "14e": ((ORACLE, "1.3 to 2.3", (1.3, 2.6)),),
    "16a": ((ORACLE, "1.67", (1.34, 2.0)),),
    "16b": ((ORACLE, "3.58", (2.86, 4.3)),),
    "17": ((ORACLE, "2", (1.6, 2.4)), (POW2, "2", (1.6, 2.4)), (MAX, "2", (1.6, 2.4))),
}
# best block sizes of figure 18b by data set: paper's words, band
BEST_BLOCKS: dict[str, tuple[str, Band]] = {
    "ShareGPT": ("16 to 128", (16, 128)),
    "Alpaca": ("16, 32", (16, 32)),
}


def words_of(band: Band) -> str:
    """A band for reading."""
    low, high = band
    if high == math.inf:
        return f"at least {number(low)}"
    return f"{number(low)} to {number(high)}" if low else f"at most {number(high)}"


def number(value: float) -> str:
    """Four digits, or all before the point."""
    return f"{value:.4g}" if value < 1e4 else f"{value:.0f}"
