"""Lengths of the requests of each workload."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from load_tests.paper.experiments.cells import WorkloadName
from load_tests.paper.experiments.opt_models import MAX_MODEL_LEN
from load_tests.traffic.lengths import DATA_SETS, Lengths, parse_lengths

# tokens of the instruction with its examples (paper, section 6.4)
PREFIX_LENS: dict[WorkloadName, int] = {"translation_1": 80, "translation_5": 341}
# Moran process of beams, see `BeamAncestry`; fitted to the savings of figure 15b
BEAM_REPLACEMENT: dict[WorkloadName, float] = {"alpaca": 0.10, "sharegpt": 0.01}

# workload -> option of the command that names its file
SOURCES: dict[WorkloadName, str] = {
    "sharegpt": "sharegpt",
    "alpaca": "alpaca",
    "chat": "chat",
    "translation_1": "translation",
    "translation_5": "translation",
}
# option -> file; without one the shipped table or an estimate is used
Files = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Translations:
    """Newspaper sentences and their translations; an estimate, as the test set is not shipped.

    English sentences of WMT16's test set have about 21 words, 31 tokens of LLaMA's tokenizer; the
    German ones take 1.4 tokens for each of these.
    """

    def draw(self, random: Random) -> tuple[int, int]:
        input_len = math.exp(random.gauss(math.log(27.0), 0.5))
        output_len = 1.42 * input_len * math.exp(random.gauss(0.0, 0.15))
        return max(2, min(200, round(input_len))), max(2, min(300, round(output_len)))


@dataclass(frozen=True, slots=True)
class Prefixed:
    """Prompts that begin with a prefix all have in common."""

    prefix_len: int
    own: Lengths

    def draw(self, random: Random) -> tuple[int, int]:
        input_len, output_len = self.own.draw(random)
        return self.prefix_len + input_len, output_len


def lengths(workload: WorkloadName, files: Files) -> Lengths:
    """Make the lengths of a workload.

    Raises:
        ValueError: if its file cannot be used.
    """
    own: Lengths
    name = files.get(SOURCES[workload])
    if name is None and SOURCES[workload] == "translation":
        own = Translations()
    else:
        own = parse_lengths(name or SOURCES[workload], MAX_MODEL_LEN)
    prefix_len = PREFIX_LENS.get(workload)
    return Prefixed(prefix_len, own) if prefix_len else own


def content(workload: WorkloadName, files: Files) -> str:
    """Name the data of a workload by their content; empty for the estimate."""
    source = SOURCES[workload]
    name = files.get(source)
    path = Path(name) if name else DATA_SETS.get(source)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path else ""
