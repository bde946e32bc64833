"""The model of the workers' speed: measured, or the paper's card; beyond the measured, linear."""

from bisect import bisect_left
from dataclasses import dataclass, replace
from pathlib import Path

from engine.config import EngineConfig
from load_tests.simulator.step_tables import FOLDER, StepTable, read_table
from load_tests.simulator.step_time import A100_OPT_13B, LinearStepTime, StepTime, StepWork

A100, H100 = "a100_opt_13b", "h100_llama3_8b"
DEFAULT = "cpu_smollm2_135m"


@dataclass(frozen=True, slots=True)
class WithLongPrompts:
    """Adds the attention of prompts, whose work grows with the square of their length.

    Attributes:
        inside: times all else.
        pair_s: seconds per pair of a prompt's token and a position before it.
    """

    inside: StepTime
    pair_s: float

    def seconds(self, work: StepWork) -> float:
        """See `StepTime.seconds`."""
        return self.inside.seconds(work) + self.pair_s * work.num_pairs(first=work.num_decodes)


@dataclass(frozen=True, slots=True)
class Scaled:
    """Every step takes so many times as long."""

    inside: StepTime
    factor: float

    def seconds(self, work: StepWork) -> float:
        """See `StepTime.seconds`."""
        return self.factor * self.inside.seconds(work)


# LLaMA-3-8B in bfloat16 on an H100 80 GB, fitted by hand to eleven steps that were measured there
# (results/step_20261128_055719.json): decodes of 1 to 256 sequences within 2 %, 128 decodes beside
# 64 to 1024 prompt tokens within 8 %. context_token_s is 128 KiB at 2.5 TB/s; a pair of a prompt's
# token and a position takes 0.52 MFLOP at 60 % of the data sheet, an estimate.
H100_LLAMA3_8B = WithLongPrompts(
    LinearStepTime(
        weights_s=5.6e-3,
        token_s=24e-6,
        context_token_s=0.052e-6,
        step_s=0.45e-3,
        sequence_s=8e-6,
        copied_block_s=1.5e-6,
        swapped_block_s=42e-6,
    ),
    pair_s=0.9e-9,
)


@dataclass(frozen=True, slots=True)
class WorkerSpeed:
    """A model of a step's time and notes about it.

    Attributes:
        name: of the model or card.
        step_time: takes work of any size.
        notes: for the report, for example what had to be extrapolated.
    """

    name: str
    step_time: StepTime
    notes: tuple[str, ...] = ()


def shipped() -> tuple[str, ...]:
    """Names that `read_speed` knows."""
    return (A100, H100, *sorted(path.stem for path in FOLDER.glob("*.json")))


def read_speed(name: str, config: EngineConfig) -> WorkerSpeed:
    """Find a shipped model, or read a table that `calibrate` wrote.

    Args:
        name: one of `shipped`, or a file.
        config: the largest steps that will be asked for.

    Raises:
        ValueError: if it is neither.
    """
    if name == A100:
        return WorkerSpeed("OPT-13B on an A100 of the paper, fitted", A100_OPT_13B)
    if name == H100:
        return WorkerSpeed("LLaMA-3-8B on an H100, fitted to measured steps", H100_LLAMA3_8B)
    path = FOLDER / f"{name}.json" if name in shipped() else Path(name)
    if not path.is_file():
        raise ValueError(
            f"step times {name!r}: no file and none of {', '.join(shipped())}; make a table with "
            "`python -m load_tests calibrate`"
        )
    table = read_table(path)
    limits = table.batches[-1], table.contexts[-1], table.prompt_lens[-1]
    name = f"{table.model}, {table.device}, {table.dtype}"
    return WorkerSpeed(name, Extrapolated(by_batch(table), limits), _notes(table, config))


@dataclass(frozen=True, slots=True)
class ByBatch:
    """Interpolates between the batches of a table, each as it was measured.

    A table takes larger work never to be faster, which takes noise out. Along batches that is no
    noise: on a CPU steps of four sequences were faster than steps of two in three calibrations of
    four.

    Attributes:
        batches: sequences that decode, increasing.
        rows: time steps of up to so many each.
    """

    batches: tuple[int, ...]
    rows: tuple[StepTime, ...]

    def seconds(self, work: StepWork) -> float:
        """See `StepTime.seconds`."""
        number = work.num_decodes
        place = bisect_left(self.batches, number)
        if place in (0, len(self.batches)) or self.batches[place] == number:
            return self.rows[min(place, len(self.rows) - 1)].seconds(work)
        low, high = self.batches[place - 1 : place + 1]
        low_s = self.rows[place - 1].seconds(_with_decodes(work, low))
        high_s = self.rows[place].seconds(_with_decodes(work, high))
        return low_s + (high_s - low_s) * (number - low) / (high - low)


def by_batch(table: StepTable) -> ByBatch:
    """Take a table apart."""
    parts = zip(table.batches, table.decode_s, strict=True)
    rows = (replace(table, batches=(n,), decode_s=(times_s,)).step_time() for n, times_s in parts)
    return ByBatch(table.batches, tuple(rows))


def _with_decodes(work: StepWork, number: int) -> StepWork:
    """The same step with another number of decodes of the same mean context."""
    first = work.num_decodes
    context = round(work.num_decode_positions / first)
    return replace(
        work,
        new_tokens=(1,) * number + work.new_tokens[first:],
        contexts=(context,) * number + work.contexts[first:],
        num_decodes=number,
    )


@dataclass(frozen=True, slots=True)
class Extrapolated:
    """Goes on where a table ends, along the line through its largest step and one of half the size.

    Attributes:
        inside: takes work up to the limits.
        limits: sequences that decode, their mean positions, and tokens of prompts.
    """

    inside: StepTime
    limits: tuple[int, int, int]

    def seconds(self, work: StepWork) -> float:
        """See `StepTime.seconds`."""
        num_decodes = work.num_decodes
        context = work.num_decode_positions / max(1, num_decodes)
        sizes = (num_decodes, context, work.num_prompt_tokens)
        clipped = [*map(min, sizes, self.limits)]
        if clipped == list(sizes):
            return self.inside.seconds(work)
        base_s = self._seconds(work, clipped)
        more_s = 0.0
        for axis, (size, limit) in enumerate(zip(sizes, self.limits, strict=True)):
            if size > limit:
                halved = [*clipped[:axis], limit / 2, *clipped[axis + 1 :]]
                slope_s = (base_s - self._seconds(work, halved)) / (limit - limit / 2)
                more_s += max(0.0, slope_s) * (size - limit)
        return base_s + more_s

    def _seconds(self, work: StepWork, sizes: list[float]) -> float:
        """Time of a step with other sizes: decodes, context of each, tokens of one prompt."""
        resized = replace(
            StepWork.alike(*map(int, sizes)),
            num_copied_blocks=work.num_copied_blocks,
            num_swapped_blocks=work.num_swapped_blocks,
        )
        return self.inside.seconds(resized)


def _notes(table: StepTable, config: EngineConfig) -> tuple[str, ...]:
    """Say where the table ends before the largest steps that the settings allow."""
    ends = (
        ("sequences", table.batches[-1], config.max_num_seqs),
        ("positions", table.contexts[-1], config.scheduler.max_model_len),
        ("prompt tokens", table.prompt_lens[-1], config.scheduler.max_step_tokens),
    )
    notes = [
        f"step times are measured up to {end} {what}, and linear beyond (settings allow {largest})"
        for what, end, largest in ends
        if end < largest
    ]
    if table.block_size != config.block_size:
        notes.append(
            f"step times are measured with blocks of {table.block_size}, not {config.block_size}: "
            "what another size does to the kernels is not in the figures"
        )
    return tuple(notes)
