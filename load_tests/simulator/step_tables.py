"""Tables of measured step times: a JSON file with the card, the versions and the commit."""

from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from engine.errors import ConfigError
from load_tests.report import write_json
from load_tests.simulator.measured_step_time import (
    MeasuredStepTime,
    MixedTimes,
    WithFilledBatches,
    WithSharedPrefix,
)
from load_tests.simulator.step_time import StepTime, WithBlockCopies

# tables that are shipped
FOLDER = Path(__file__).parents[1] / "step_times"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable:
    """Wall-clock seconds of steps of the engine in one process, scheduler included.

    Attributes:
        model, device, dtype: what was measured.
        block_size: tokens per block.
        machine: see `machine.describe`: card or processor, versions, commit, date.
        batches: sequences of the decode steps.
        contexts: positions of each of their sequences.
        decode_s: median seconds by batch, then by context; here and below the least of the rounds.
        prompt_lens: tokens of steps that prefill one prompt.
        prefill_s: median seconds for each.
        spread: largest over all points of the ninth decile over the first; None if not kept.
        mixed: seconds that prompts add to steps that decode; None if not measured.
        copied_block_s, swapped_block_s: per block, inside of the pool and over the bus; 0 if not
            measured.
        n, beam_width: how the measured requests decode, see `SamplingParams`.
        sizes: see `WithFilledBatches`; empty where batches are computed as they are.
        shared_cost: see `WithSharedPrefix`; 1 where it is not measured.
    """

    model: str
    device: str
    dtype: str
    block_size: int
    machine: dict[str, object]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    decode_s: tuple[tuple[float, ...], ...]
    prompt_lens: tuple[int, ...]
    prefill_s: tuple[float, ...]
    spread: float | None
    mixed: MixedTimes | None = None
    copied_block_s: float = 0.0
    swapped_block_s: float = 0.0
    n: int = 1
    beam_width: int = 0
    sizes: tuple[int, ...] = ()
    shared_cost: float = 1.0

    def step_time(self, shared_len: int = 0) -> StepTime:
        """Make the model that interpolates.

        Args:
            shared_len: tokens that all prompts begin with, in blocks that they share.
        """
        model: StepTime = MeasuredStepTime(
            batches=self.batches,
            contexts=self.contexts,
            decode_s=self.decode_s,
            prompt_lens=self.prompt_lens,
            prefill_s=self.prefill_s,
            mixed=self.mixed,
        )
        sizes = tuple(size for size in self.sizes if size <= self.batches[-1])
        if sizes:
            model = WithFilledBatches(model, sizes)
        if shared_len:
            model = WithSharedPrefix(model, shared_len, self.shared_cost)
        return WithBlockCopies(
            model, self.copied_block_s, self.swapped_block_s, is_beside=self.device != "cpu"
        )


def write_table(path: Path, table: StepTable) -> None:
    """Write a table."""
    write_json(path, asdict(table))


def read_table(path: Path) -> StepTable:
    """Read a table.

    Raises:
        ValueError: if the file is none.
        OSError: if it cannot be read.
    """
    try:
        table = msgspec.json.decode(path.read_bytes(), type=StepTable)
        # axes and numbers are checked where they are used
        table.step_time()
    except (msgspec.MsgspecError, ConfigError) as error:
        raise ValueError(
            f"{path} is no table of step times ({error}); make one with "
            "`python -m load_tests calibrate`"
        ) from None
    return table
