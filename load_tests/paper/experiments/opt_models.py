"""The paper's models on its machines (table 1, figure 19a), and how long their steps take.

OPT-13B on one A100 is `A100_OPT_13B`; the other two scale each of its terms by what one of their
cards moves or computes, and add the all-reduces. Nothing is fitted to their curves.
"""

import json
from dataclasses import dataclass, replace

from engine.types import Capacity
from load_tests.paper.experiments.scales import DATA
from load_tests.simulator.step_time import A100_OPT_13B, LinearStepTime, StepWork

GIB = 1 << 30
# block size of the paper, and of the time to copy a block in `A100_OPT_13B`
BLOCK_SIZE = 16
MAX_MODEL_LEN = 2048
# of figures 18 and 19
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# tokens of the sequence that figure 19a brings back
NUM_TOKENS = 256
# more than ever fit the pool, so that only memory limits the batch
MAX_NUM_SEQS = 2048
SWAP_BYTES = 20 * GIB
VALUE_BYTES = 2
OPT_VOCAB_SIZE = 50_272

# bytes per second to the host, which PCIe 4.0 with 16 lanes leaves
PCIE_BANDWIDTH = 25e9
# estimates: to start one asynchronous copy; an all-reduce over NVLink, its least time and its rate
COPY_START_S = 5e-6
ALL_REDUCE_S = 15e-6
ALL_REDUCE_BANDWIDTH = 235e9


@dataclass(frozen=True, slots=True, kw_only=True)
class OptModel:
    """A row of table 1.

    Attributes:
        params_gb, num_slots: as the paper prints them; GB are 1e9 bytes.
        kv_gib: memory for keys and values on all cards.
        bandwidth: of one card in bytes per second, by the data sheet of the A100 with 40 or 80 GB.
        batches: most requests of a FasterTransformer batch by data set, as the paper's authors set
            them (https://github.com/sosp-ae-39/sosp-ae-astra).
    """

    name: str
    num_layers: int
    hidden_size: int
    num_gpus: int
    bandwidth: float
    params_gb: float
    kv_gib: float
    num_slots: int
    num_blocks: int
    batches: dict[str, int]

    @property
    def kv_bytes_per_token(self) -> int:
        """Of all layers on all cards."""
        return 2 * VALUE_BYTES * self.num_layers * self.hidden_size

    @property
    def num_params(self) -> int:
        """Weights of the layers and of the embedding; biases and norms are left out."""
        return 12 * self.num_layers * self.hidden_size**2 + OPT_VOCAB_SIZE * self.hidden_size

    def capacity(self, block_size: int = BLOCK_SIZE) -> Capacity:
        """The pool of table 1 in blocks of another size, and the swap space of the authors."""
        return Capacity(
            num_blocks=self.num_blocks * BLOCK_SIZE // block_size,
            block_size=block_size,
            num_rows=MAX_NUM_SEQS,
            num_swap_blocks=SWAP_BYTES // (self.kv_bytes_per_token * block_size),
        )

    def step_time(self, block_size: int = BLOCK_SIZE) -> LinearStepTime:
        """Scale the terms of OPT-13B on one A100 40 GB to one card's part of this model."""
        base = OPT_13B
        weights = self.num_params / base.num_params / self.num_gpus
        keys = self.kv_bytes_per_token / base.kv_bytes_per_token / self.num_gpus
        slower = base.bandwidth / self.bandwidth
        layers = self.num_layers / base.num_layers
        step_s, token_s = self._all_reduces()
        return replace(
            A100_OPT_13B,
            weights_s=A100_OPT_13B.weights_s * weights * slower,
            token_s=A100_OPT_13B.token_s * weights + token_s,
            context_token_s=A100_OPT_13B.context_token_s * keys * slower,
            step_s=A100_OPT_13B.step_s * layers + step_s,
            copied_block_s=A100_OPT_13B.copied_block_s * keys * slower * block_size / BLOCK_SIZE,
            swapped_block_s=self.swap_block_s(block_size),
        )

    def swap_block_s(self, block_size: int) -> float:
        """Seconds to copy a block to or from the host: keys and values of each layer by themselves.

        Each of these pieces costs at least the start of a copy, which is what makes small blocks
        slow (paper, section 7.3).
        """
        piece_bytes = VALUE_BYTES * self.hidden_size * block_size / self.num_gpus
        return 2 * self.num_layers * max(COPY_START_S, piece_bytes / PCIE_BANDWIDTH)

    def _all_reduces(self) -> tuple[float, float]:
        """Seconds of two all-reduces per layer: for each step, and for each token."""
        if self.num_gpus == 1:
            return 0.0, 0.0
        num, token_bytes = 2 * self.num_layers, VALUE_BYTES * self.hidden_size
        moved = 2 * (self.num_gpus - 1) / self.num_gpus * token_bytes
        return num * ALL_REDUCE_S, num * moved / ALL_REDUCE_BANDWIDTH


MODELS = {
    key: OptModel(**values)
    for key, values in json.loads((DATA / "models.json").read_text(encoding="utf-8")).items()
}
OPT_13B = MODELS["13B"]


def paper_model(folder_name: str) -> str:
    """The key in `MODELS` of a model folder's name, such as opt-66b; OPT-13B's for any other."""
    matching = (key for key, model in MODELS.items() if model.name.lower() == folder_name)
    return next(matching, "13B")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryTimes:
    """Seconds to bring back a sequence of `NUM_TOKENS` tokens with blocks of one size."""

    block_size: int
    swap_in_s: float
    swap_out_s: float
    recompute_s: float


def figure_19a() -> tuple[RecoveryTimes, ...]:
    """The cost of swapping and recomputation for OPT-13B on the modelled A100."""
    prefill = StepWork.alike(0, 0, NUM_TOKENS)
    copies_s = {size: NUM_TOKENS // size * OPT_13B.swap_block_s(size) for size in BLOCK_SIZES}
    return tuple(
        RecoveryTimes(
            block_size=size,
            swap_in_s=copy_s,
            swap_out_s=copy_s,
            recompute_s=OPT_13B.step_time(size).seconds(prefill),
        )
        for size, copy_s in copies_s.items()
    )
