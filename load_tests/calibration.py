"""Measures a table of step times on a live worker."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median, quantiles

from engine.config import Device
from engine.core.engine import Engine
from engine.executor.measured_step_time import MixedTimes
from engine.executor.simulated import BeamAncestry
from engine.executor.step_time import StepWork
from engine.worker.graph_staging import mixed_variants
from load_tests import machine
from load_tests.live import LiveStep, LiveWorker, Turn
from load_tests.simulation import Setup
from load_tests.step_tables import StepTable
from load_tests.traffic.schedule import TimedRequest

# the first steps of a batch find cold caches
WARM_UP_STEPS = 3
# of the sequences that decode beside prompts: what prompts add hardly depends on it
MIXED_CONTEXT = 16
# beams that are replaced in a step while they are measured, as in figure 15
BEAM_REPLACEMENT = 0.1
# prompts are computed in pieces, as a model may know fewer positions than a step has tokens
_PIECE_LEN = 1024
# of the pool; newcomers leave some blocks free
_USABLE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """What is measured; all axes increase.

    Attributes:
        batches, contexts: of steps that only decode; a context is left out where the pool is full,
            or the sequences would grow beyond the model's last position.
        prompt_lens: tokens of prompts, alone and beside `mixed_batches` decodes.
        mixed_batches: may be empty.
        padded_len: see `MixedTimes`.
        n, beam_width: how requests decode, see `SamplingParams`; batches are multiples of n.
        repeats: steps per point.
    """

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    prompt_lens: tuple[int, ...]
    mixed_batches: tuple[int, ...] = ()
    padded_len: int = 0
    n: int = 1
    beam_width: int = 0
    repeats: int = 12

    @property
    def budget(self) -> int:
        """Tokens of the largest step."""
        return max(self.prompt_lens) + max(self.batches)

    @property
    def num_rows(self) -> int:
        """Sequences of the largest step."""
        return max(self.batches) + self.n * -(-max(self.prompt_lens) // _PIECE_LEN)

    def longest(self, max_position: int) -> int:
        """Positions of the longest sequence that is needed, as far as the model has them."""
        context = max(self.contexts)
        num_prefills = -(-max(self.batches) * context // max(self.prompt_lens))
        needed = context + num_prefills + WARM_UP_STEPS + self.repeats + 1
        return min(max_position, max(needed, min(max(self.prompt_lens), _PIECE_LEN) + 1))


# the sizes that the engine makes graphs for, and the first beyond, where each kernel is launched
_GPU_LENS = tuple(sorted({v.num_prompt_tokens for v in mixed_variants(256, 2560)}))
DEFAULT_POINTS: dict[Device, Points] = {
    "cpu": Points(
        batches=(1, 4, 16, 32),
        contexts=(64, 256, 1024),
        prompt_lens=(16, 64, 256, 1024),
        mixed_batches=(4, 32),
    ),
    "cuda": Points(
        batches=(1, 8, 32, 64, 128, 256),
        contexts=(32, 128, 512, 1900, 2048),
        prompt_lens=(*_GPU_LENS, _GPU_LENS[-1] + 1, 2560),
        mixed_batches=(8, 64, 256),
        padded_len=_GPU_LENS[-1],
    ),
}


def calibrate(
    worker: LiveWorker, points: Points, progress: Callable[[str], None] = lambda line: None
) -> StepTable:
    """Measure all points.

    Args:
        progress: told what has been measured.

    Raises:
        ValueError: if a batch does not fit the pool.
    """
    bench = _Bench(worker, points)
    decode_s = []
    for batch in points.batches:
        decode_s.append(bench.decodes(batch))
        progress(f"decode {batch}: {_told(decode_s[-1])} ms")
    prefill_s = tuple(bench.prefill(length) for length in points.prompt_lens)
    progress(f"prefill: {_told(prefill_s)} ms")
    added_s = []
    for batch in points.mixed_batches:
        added_s.append(bench.prompts_beside(batch))
        progress(f"prompts beside {batch} decodes: + {_told(added_s[-1])} ms")
    config = worker.config
    mixed = MixedTimes(
        batches=points.mixed_batches,
        prompt_lens=points.prompt_lens,
        added_s=tuple(added_s),
        padded_len=points.padded_len,
    )
    return StepTable(
        model=Path(config.model_path).name,
        device=config.device,
        dtype=config.dtype,
        block_size=worker.capacity.block_size,
        machine=machine.describe(),
        batches=points.batches,
        contexts=points.contexts,
        decode_s=tuple(decode_s),
        prompt_lens=points.prompt_lens,
        prefill_s=prefill_s,
        spread=max(bench.spreads),
        mixed=mixed if added_s else None,
        copied_block_s=worker.block_copy_s(),
        swapped_block_s=worker.capacity.block_copy_s,
        n=points.n,
        beam_width=points.beam_width,
    )


class _Bench:
    """Runs the points, each in an engine of its own.

    Attributes:
        spreads: of each point, ninth decile over the first.
    """

    def __init__(self, worker: LiveWorker, points: Points) -> None:
        self.spreads: list[float] = []
        self._worker = worker
        self._points = points
        self._max_len = worker.config.max_model_len

    def decodes(self, batch: int) -> tuple[float, ...]:
        """Seconds of a step for each context that fits."""
        contexts = [c for c in self._points.contexts if self._fits(batch, c)]
        if len(contexts) < min(2, len(self._points.contexts)):
            raise ValueError(
                f"{batch} sequences of two contexts fit neither the model nor the pool: lower "
                "--contexts or raise --num-blocks"
            )
        return tuple(self._decode(batch, context) for context in contexts)

    def prefill(self, prompt_len: int) -> float:
        """Seconds of a step that computes prompts and nothing else."""
        times_s = []
        run = self._run()
        for _ in range(WARM_UP_STEPS + self._points.repeats):
            run.prefill(prompt_len)
            times_s += [step.step_s for step in run.steps()]
        run.close()
        return self._median(times_s[WARM_UP_STEPS:])

    def prompts_beside(self, batch: int) -> tuple[float, ...]:
        """Seconds that prompts of each length add to a step of so many decodes."""
        return tuple(self._added(batch, length) for length in self._points.prompt_lens)

    def _decode(self, batch: int, context: int) -> float:
        repeats = self._points.repeats
        # a batch grows while its last prompts wait, and the mean over the timed steps counts
        num_early = self._num_prefills(batch, context) + WARM_UP_STEPS + repeats // 2
        run = self._run()
        run.fill(batch, max(1, context - num_early), self._max_len)
        decodes = (
            step
            for step in run.steps()
            if _is_decode(step.work, batch)
            and step.work.num_decode_positions >= batch * (context - WARM_UP_STEPS - repeats // 2)
        )
        times_s = [step.step_s for step in islice(decodes, WARM_UP_STEPS + repeats)]
        run.close()
        return self._median(times_s[WARM_UP_STEPS:])

    def _added(self, batch: int, prompt_len: int) -> float:
        run = self._run()
        run.fill(batch, MIXED_CONTEXT, self._max_len)
        steps = run.steps()
        while not _is_decode(next(steps).work, batch):
            pass
        count = self._points.repeats // 2
        before = [next(steps) for _ in range(WARM_UP_STEPS + count)][WARM_UP_STEPS:]
        between = []
        for _ in range(count):
            run.prefill(prompt_len)
            between += [next(steps), next(steps)]
        num_prompt_tokens = sum(step.work.num_prompt_tokens for step in between)
        after = [next(steps) for _ in range(WARM_UP_STEPS + count)][WARM_UP_STEPS:]
        run.close()
        alone_s = (self._mean(before) + self._mean(after)) / 2
        # whoever launches a step kernel by kernel does so while the one before runs: only the sum
        # over both tells what prompts add
        added_s = sum(step.step_s for step in between) - alone_s * len(between)
        return max(0.0, added_s) * prompt_len / num_prompt_tokens

    def _mean(self, steps: list[LiveStep]) -> float:
        return self._median([step.step_s for step in steps])

    def _fits(self, batch: int, context: int) -> bool:
        points = self._points
        num_grown = self._num_prefills(batch, context) + WARM_UP_STEPS + points.repeats
        own = min(context, num_grown) + self._worker.capacity.block_size
        num_slots = batch // points.n * max(0, context - num_grown) + batch * own
        is_short = context + num_grown < self._max_len
        return is_short and num_slots <= _USABLE * self._worker.capacity.num_slots

    def _num_prefills(self, batch: int, context: int) -> int:
        """Steps until a batch decodes, at most: its decodes leave the longest prompt's tokens."""
        return -(-(batch // self._points.n) * context // max(self._points.prompt_lens))

    def _run(self) -> "_Run":
        return _Run(self._worker, self._points)

    def _median(self, times_s: list[float]) -> float:
        if len(times_s) < 2:
            raise ValueError("the pool does not hold what is to be measured: raise --num-blocks")
        tenths = quantiles(times_s, n=10)
        self.spreads.append(tenths[-1] / tenths[0])
        return median(times_s)


class _Run:
    """One engine and its requests."""

    def __init__(self, worker: LiveWorker, points: Points) -> None:
        config = replace(worker.config.scheduler, prefix_cache=False)
        ancestry = BeamAncestry(replacement=BEAM_REPLACEMENT) if points.beam_width else None
        self._turn: Turn = worker.turn(ancestry=ancestry)
        self._engine = Engine(config, self._turn)
        self._n = points.n
        self._setup = Setup(
            config=config,
            capacity=self._turn.capacity,
            step_time=_Nothing(),
            n=points.n,
            beam_width=points.beam_width,
        )
        self._num_sent = 0

    def prefill(self, num_tokens: int) -> None:
        """Add prompts that are computed in one step, and end with it."""
        for start in range(0, num_tokens, _PIECE_LEN):
            self._add(min(_PIECE_LEN, num_tokens - start), 1)

    def fill(self, batch: int, prompt_len: int, max_len: int) -> None:
        """Add a batch of sequences that goes on for as long as it can."""
        for _ in range(batch // self._n):
            self._add(prompt_len, max_len - prompt_len)

    def steps(self) -> Iterator[LiveStep]:
        """Step while there is work."""
        while self._engine.step(0.0) is not None:
            yield self._turn.steps[-1]

    def close(self) -> None:
        self._turn.close()

    def _add(self, prompt_len: int, output_len: int) -> None:
        timed = TimedRequest(due_s=0.0, input_len=prompt_len, output_len=output_len)
        self._engine.add(self._setup.request(self._num_sent, timed))
        self._num_sent += 1


class _Nothing:
    def seconds(self, work: StepWork) -> float:
        raise AssertionError(work)


def _is_decode(work: StepWork, batch: int) -> bool:
    return work.num_decodes == len(work.new_tokens) == batch


def _told(times_s: tuple[float, ...]) -> str:
    return ", ".join(f"{1e3 * seconds:.2f}" for seconds in times_s)
