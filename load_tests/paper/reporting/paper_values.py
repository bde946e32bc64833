"""The numbers that the paper prints and the bands around them, see data/paper_values.json."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from load_tests.paper.experiments.cells import SYSTEMS
from load_tests.paper.experiments.scales import DATA

# least and most
Band = Sequence[float]
PAGED, ORACLE, POW2, MAX, FASTER = (label for label, _ in SYSTEMS.values())
# where the plots of the paper end. Batches of FasterTransformer reach `SUSTAINED_S` at little load,
# as a request of few tokens is answered with its whole batch; here the queue decides
TOP_S = 1.0
_VALUES: Mapping[str, Any] = json.loads((DATA / "paper_values.json").read_text(encoding="utf-8"))
_MEANS: Mapping[str, Sequence[float]] = _VALUES["means"]
# percent of blocks with 2 and 6 sequences, by panel and data set
SAVINGS: Mapping[str, Mapping[str, Sequence[float]]] = _VALUES["savings"]
# sustained rate of the paged system as a multiple of a baseline's: paper's words, band. With
# ShareGPT the paper gives ranges over all three models; of 14 only where the engine runs
GAINS: Mapping[str, Sequence[tuple[str, str, Band]]] = _VALUES["gains"]
# best block sizes of figure 18b by data set: paper's words, band
BEST_BLOCKS: Mapping[str, tuple[str, Band]] = _VALUES["best_blocks"]


def means_of(panel: str, model: str) -> Sequence[float]:
    """Shares of slots and batches of paged / Oracle / Pow2 / Max; none but those of OPT-13B.

    They are printed in the figures; of figure 2 the first three and in the text.
    """
    return _MEANS.get(panel, ()) if model == "13B" else ()


def words_of(band: Band) -> str:
    """A band for reading."""
    low, high = band
    if high == math.inf:
        return f"at least {number(low)}"
    return f"{number(low)} to {number(high)}" if low else f"at most {number(high)}"


def number(value: float) -> str:
    """Four digits, or all before the point."""
    return f"{value:.4g}" if value < 1e4 else f"{value:.0f}"
