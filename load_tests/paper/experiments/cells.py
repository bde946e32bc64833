"""The unit of work: one workload at one rate on one system, and what comes out of it."""

from dataclasses import dataclass
from typing import Literal

from engine.config import MemoryPolicy, PreemptionPolicy

System = Literal["paged", "orca_oracle", "orca_pow2", "orca_max", "faster_transformer"]
WorkloadName = Literal["sharegpt", "alpaca", "translation_1", "translation_5", "chat"]

# system -> label in the figures, memory policy of the scheduler
SYSTEMS: dict[System, tuple[str, MemoryPolicy]] = {
    "paged": ("paged", "paged"),
    "orca_oracle": ("Orca (Oracle)", "reserved_oracle"),
    "orca_pow2": ("Orca (Pow2)", "reserved_pow2"),
    "orca_max": ("Orca (Max)", "reserved_max"),
    "faster_transformer": ("FasterTransformer", "faster_transformer"),
}
# what KV slots are used for: fields of `CellResult` that sum up to 100 percent
USES = ("filled", "reserved", "internal", "external", "free")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One simulation, or one run of the engine.

    Attributes:
        model: key of `MODELS`.
        rate_per_s: Poisson arrivals during `duration_s`.
        window_from_s: steps from here to the end of the arrivals count, and the run ends with
            them; None serves every request that came and counts all steps.
        n, beam_width: sequences of each request, see `SamplingParams`.
    """

    model: str = "13B"
    system: System = "paged"
    workload: WorkloadName = "sharegpt"
    rate_per_s: float
    duration_s: float
    window_from_s: float | None = None
    n: int = 1
    beam_width: int = 0
    block_size: int = 16
    preemption: PreemptionPolicy = "auto"
    seed: int = 0

    @property
    def until_s(self) -> float:
        """When the run ends at the latest."""
        return float("inf") if self.window_from_s is None else self.duration_s

    def __str__(self) -> str:
        """Name the cell in a few words."""
        several = f" {'width' if self.beam_width else 'n'} = {self.n}" if self.n > 1 else ""
        model = f" OPT-{self.model}" if self.model != "13B" else ""
        size = f", blocks of {self.block_size}" if self.block_size != 16 else ""
        # the end of a window is not the end of the requests
        all_served = ", all served" if self.window_from_s is None else ""
        what = f"{self.workload}{model}{several}, {SYSTEMS[self.system][0]}"
        return f"{what}, {self.rate_per_s:.3g}/s{size}{all_served}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """What one cell gave; a mean is over its steps or finished requests, and 0 without any.

    Attributes:
        norm_latency_s, norm_latency_p50_s, norm_latency_p99_s: from arrival to the end of a
            request, per output token.
        num_requests, num_finished: sent and ended.
        num_sequences: in the batch, mean.
        filled, reserved, internal, external, free: percent of slots, mean.
        saving: percent of blocks saved by sharing.
        cached: percent of prompt tokens found in the prefix cache.
        num_recomputed, num_swapped_out: preemptions until the end.
        num_steps, end_s: of the run.
        sustained_per_s: requests per second whose tokens were computed in the window, which is
            the rate that an overloaded system sustains; None in results that were kept without.
    """

    norm_latency_s: float
    norm_latency_p50_s: float
    norm_latency_p99_s: float
    num_requests: int
    num_finished: int
    num_sequences: float
    filled: float
    reserved: float
    internal: float
    external: float
    free: float
    saving: float
    cached: float
    num_recomputed: int
    num_swapped_out: int
    num_steps: int
    end_s: float
    sustained_per_s: float | None = None
