"""Runs engines whose steps all do the same work, and times them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from statistics import fmean, median, quantiles

from engine.core.engine import Engine
from engine.integers import div_ceil
from engine.types import int32
from load_tests.simulator.calibrate.live_worker import LiveStep, LiveWorker, Turn
from load_tests.simulator.calibrate.points import (
    MIXED_CONTEXT,
    PIECE_LEN,
    SPREAD,
    WARM_UP_STEPS,
    Points,
)
from load_tests.simulator.replay import length_request
from load_tests.simulator.simulated_executor import PROMPT_TOKEN, BeamAncestry
from load_tests.simulator.step_time import StepWork
from load_tests.traffic.schedule import TimedRequest

# beams that are replaced in a step while they are measured, as in figure 15
BEAM_REPLACEMENT = 0.1
# times further above the median are no measurement
_MOST_OVER_MEDIAN = 1.3
# of the pool: admissions leave some blocks free
_USABLE = 0.9


class StepBench:
    """Runs the points, each in an engine of its own.

    Attributes:
        spreads: of each point, ninth decile over the first.
        copied_block_s: seconds of a block that is copied inside of the pool; steps are reported
            without those of their copies, which `WithBlockCopies` adds.
    """

    def __init__(self, worker: LiveWorker, points: Points) -> None:
        self.spreads: list[float] = []
        self.copied_block_s = worker.block_copy_s()
        self._worker = worker
        self._points = points
        self._max_len = worker.config.scheduler.max_model_len

    def warm_up(self) -> None:
        """Run a point for nothing: a worker that has just been made is slower."""
        self._decode(self._points.batches[0], self._points.contexts[0])
        self.spreads.clear()

    def decodes(self, batch: int) -> tuple[float, ...]:
        """Seconds of a step for each context that fits."""
        points = self._points
        wanted = points.contexts[:2] if batch in points.brief_batches else points.contexts
        contexts = [context for context in wanted if self._fits(batch, context)]
        if len(contexts) < min(2, len(points.contexts)):
            raise ValueError(
                f"{batch} sequences of two contexts fit neither the model nor the pool: lower "
                "--contexts or raise --num-blocks"
            )
        return tuple(self._decode(batch, context) for context in contexts)

    def prefill(self, prompt_len: int) -> float:
        """Seconds of a step that computes prompts and nothing else."""
        times_s = []
        run = self._run()
        for _ in range(WARM_UP_STEPS + max(2, self._points.repeats // 2)):
            run.prefill(prompt_len)
            times_s += [step.step_s for step in run.steps()]
        run.close()
        return self._median(times_s[WARM_UP_STEPS:])

    def prompts_beside(self, batch: int) -> tuple[float, ...]:
        """Seconds that prompts of each length add to a step of so many decodes."""
        added_s: list[float] = []
        lens = self._points.prompt_lens
        while len(added_s) < len(lens):
            added_s += self._added(batch, lens[len(added_s) :])
        return tuple(added_s)

    def shared_cost(self, decode_s: Sequence[Sequence[float]]) -> float:
        """Time of a position that all sequences share over that of another; 1 if not measured.

        Args:
            decode_s: seconds of what was measured for the batches and contexts of the points.
        """
        points = self._points
        longer = [index for index, c in enumerate(points.contexts) if c >= points.shared_len > 0]
        rows = [row for row, times_s in enumerate(decode_s) if len(times_s) > max([1, *longer[:1]])]
        if not longer or not rows:
            return 1.0
        row, end = rows[-1], max(1, longer[0])
        first, last = points.contexts[0], points.contexts[end]
        position_s = (decode_s[row][end] - decode_s[row][0]) / (last - first)
        times_s, own, shared = self._decode_shared(points.batches[row])
        if position_s <= 0 or shared <= 0:
            return 1.0
        # contexts that take as long if nothing is shared
        context = first + (self._median(times_s) - decode_s[row][0]) / position_s
        return min(1.0, max(0.0, (context - own) / shared))

    def _decode(self, batch: int, context: int) -> float:
        repeats = self._points.repeats
        # a batch grows while its last prompts wait, and the mean over the timed steps counts
        num_early = self._num_prefills(batch, context) + WARM_UP_STEPS + repeats // 2
        prompt_len = max(1, context - num_early)
        room = self._max_len - context - num_early - repeats
        run = self._run()
        run.fill(batch, prompt_len, self._max_len, spread=max(0, min(SPREAD, room)))
        decodes = (
            step
            for step in run.steps()
            if _is_decode(step.work, batch)
            and step.work.num_decode_positions >= batch * (context - WARM_UP_STEPS - repeats // 2)
        )
        times_s = [self._seconds(step) for step in islice(decodes, WARM_UP_STEPS + repeats)]
        run.close()
        return self._median(times_s[WARM_UP_STEPS:])

    def _decode_shared(self, batch: int) -> tuple[list[float], float, float]:
        """Decode with a prefix that one request has computed before.

        Returns:
            Seconds of the steps, and positions of each sequence that are its own and the prefix's.
        """
        points = self._points
        num_steps = WARM_UP_STEPS + points.repeats
        block_size = self._worker.capacity.block_size
        prompt_len = min(points.shared_len, self._max_len - num_steps - 2 * block_size) + block_size
        run = _Run(self._worker, points, prefix_cache=True)
        run.prefill(prompt_len)
        list(run.steps())
        run.fill(batch, prompt_len, self._max_len)
        num_own, decodes = 0, []
        for step in run.steps():
            num_own += sum(step.work.new_tokens)
            if _is_decode(step.work, batch):
                decodes.append(step)
            if len(decodes) == num_steps:
                break
        run.close()
        own = num_own / batch - points.repeats / 2
        context = decodes[-1].work.num_decode_positions / batch - points.repeats / 2
        return [self._seconds(step) for step in decodes[WARM_UP_STEPS:]], own, context - own

    def _added(self, batch: int, prompt_lens: Sequence[int]) -> Iterator[float]:
        """What prompts add, for as many lengths as the decodes have room to grow, one at least."""
        points = self._points
        run = self._run()
        # of prompts so that there is room for one length
        room = (self._max_len - WARM_UP_STEPS - points.mixed_steps - points.num_mixed) // 2
        context = max(1, min(MIXED_CONTEXT, room))
        run.fill(batch, context, self._max_len, spread=context)
        steps = run.steps()
        num_steps = 0
        for step in steps:
            num_steps += 1
            if _is_decode(step.work, batch):
                break
        before_s = self._decoding_s(islice(steps, WARM_UP_STEPS + points.num_mixed))
        num_steps += WARM_UP_STEPS + points.num_mixed
        most_steps = self._most_steps(batch, context)
        for prompt_len in prompt_lens:
            # a step that is launched kernel by kernel is launched while the one before runs: only
            # the sum over both shows what prompts add
            sums_s = []
            for _ in range(1 + points.num_mixed):
                run.prefill(prompt_len)
                sums_s.append(sum(map(self._seconds, islice(steps, 2))))
            after_s = self._decoding_s(islice(steps, points.num_mixed))
            both_s = before_s + after_s
            # the first prompts of a size find cold caches
            yield max(0.0, self._mean(sums_s[1:]) - both_s)
            before_s = after_s
            num_steps += points.mixed_steps
            if num_steps + points.mixed_steps > most_steps:
                break
        run.close()

    def _decoding_s(self, steps: Iterator[LiveStep]) -> float:
        times_s = [self._seconds(step) for step in steps]
        return self._mean(times_s[-self._points.num_mixed :])

    def _seconds(self, step: LiveStep) -> float:
        return step.step_s - self.copied_block_s * step.work.num_copied_blocks

    def _most_steps(self, batch: int, context: int) -> int:
        """Steps that a batch of such mean prompts, the longest of twice the mean, can go on for."""
        capacity = self._worker.capacity
        num_slots = _USABLE * capacity.num_slots - max(self._points.prompt_lens)
        by_pool = int(num_slots / batch) - context - capacity.block_size
        return min(by_pool, self._max_len - 2 * context)

    def _fits(self, batch: int, context: int) -> bool:
        points = self._points
        num_grown = self._num_prefills(batch, context) + WARM_UP_STEPS + points.repeats
        own = min(context, num_grown) + self._worker.capacity.block_size
        num_slots = batch // points.n * max(0, context - num_grown) + batch * own
        is_short = context + num_grown < self._max_len
        return is_short and num_slots <= _USABLE * self._worker.capacity.num_slots

    def _num_prefills(self, batch: int, context: int) -> int:
        """Steps until a batch decodes, at most: its decodes leave the longest prompt's tokens."""
        return div_ceil(batch // self._points.n * context, max(self._points.prompt_lens))

    def _run(self) -> "_Run":
        return _Run(self._worker, self._points)

    def _mean(self, times_s: list[float]) -> float:
        """Mean of times in a row: a result that comes late shortens the next time by as much.

        A time far above the others is that of something else.
        """
        most_s = _MOST_OVER_MEDIAN * self._median(times_s)
        return fmean(min(seconds, most_s) for seconds in times_s)

    def _median(self, times_s: list[float]) -> float:
        if len(times_s) < 2:
            raise ValueError("the pool does not hold what is to be measured: raise --num-blocks")
        tenths = quantiles(times_s, n=10)
        self.spreads.append(tenths[-1] / tenths[0])
        return median(times_s)


class _Run:
    """One engine and its requests."""

    def __init__(self, worker: LiveWorker, points: Points, *, prefix_cache: bool = False) -> None:
        config = replace(worker.config.scheduler, prefix_cache=prefix_cache)
        ancestry = BeamAncestry(replacement=BEAM_REPLACEMENT) if points.beam_width else None
        self._turn: Turn = worker.turn(ancestry=ancestry)
        self._engine = Engine(config, self._turn)
        self._n = points.n
        self._beam_width = points.beam_width
        self._num_sent = 0

    def prefill(self, num_tokens: int) -> None:
        """Add prompts that are computed in one step, and end with it."""
        for start in range(0, num_tokens, PIECE_LEN):
            self._add(min(PIECE_LEN, num_tokens - start), 1)

    def fill(self, batch: int, prompt_len: int, max_len: int, *, spread: int = 0) -> None:
        """Add a batch of sequences that goes on for as long as it can.

        Args:
            prompt_len: mean over the prompts.
            spread: by so much some are longer or shorter, as far as prompts can be; evenly, and the
                first are the longest, as those that came before others mostly are.
        """
        count = batch // self._n
        spread = min(spread, prompt_len - 1)
        for index in range(count):
            longer = round(spread * (1 - (2 * index + 1) / count))
            self._add(prompt_len + longer, max_len - prompt_len - longer)

    def steps(self) -> Iterator[LiveStep]:
        """Step while there is work."""
        while self._engine.step(0.0) is not None:
            yield self._turn.steps[-1]

    def close(self) -> None:
        self._turn.close()

    def _add(self, prompt_len: int, output_len: int) -> None:
        timed = TimedRequest(due_s=0.0, input_len=prompt_len, output_len=output_len)
        prompt = int32([PROMPT_TOKEN]) * prompt_len
        request = length_request(
            self._num_sent, timed, prompt, n=self._n, beam_width=self._beam_width
        )
        self._engine.scheduler.add(request)
        self._num_sent += 1


def _is_decode(work: StepWork, batch: int) -> bool:
    return work.num_decodes == len(work.new_tokens) == batch
