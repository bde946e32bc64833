"""Table 1 and figure 19a, which follow from the models without any simulation."""

from dataclasses import dataclass

from load_tests.figures.catalogue import BLOCK_SIZES
from load_tests.figures.models import GIB, MODELS, OPT_13B, VALUE_BYTES
from load_tests.simulator.step_time import StepWork

# tokens of the sequence that figure 19a brings back
NUM_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A model of table 1: what follows from its shape, beside what the paper prints."""

    model: str
    params_gb: float
    paper_params_gb: float
    num_slots: int
    paper_num_slots: int
    kv_kib_per_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Seconds to bring back a sequence of `NUM_TOKENS` tokens with blocks of one size."""

    block_size: int
    swap_in_s: float
    swap_out_s: float
    recompute_s: float


def table_1() -> tuple[TableRow, ...]:
    """Slots from the memory that the paper prints and the bytes of a token, by model."""
    return tuple(
        TableRow(
            model=model.name,
            params_gb=VALUE_BYTES * model.num_params / 1e9,
            paper_params_gb=model.params_gb,
            num_slots=int(model.kv_gib * GIB / model.kv_bytes_per_token),
            paper_num_slots=model.num_slots,
            kv_kib_per_token=model.kv_bytes_per_token / 1024,
        )
        for model in MODELS.values()
    )


def figure_19a() -> tuple[Recovery, ...]:
    """The cost of swapping and recomputation for OPT-13B on the modelled A100."""
    prefill = StepWork.alike(0, 0, NUM_TOKENS)
    rows = []
    for size in BLOCK_SIZES:
        copy_s = NUM_TOKENS // size * OPT_13B.swap_block_s(size)
        recompute_s = OPT_13B.step_time(size).seconds(prefill)
        rows.append(
            Recovery(block_size=size, swap_in_s=copy_s, swap_out_s=copy_s, recompute_s=recompute_s)
        )
    return tuple(rows)
