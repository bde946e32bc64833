"""Measures a table of step times on a live worker."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from load_tests import machine
from load_tests.simulator.calibrate.live_worker import LiveWorker
from load_tests.simulator.calibrate.points import Points
from load_tests.simulator.calibrate.step_bench import StepBench
from load_tests.simulator.measured_step_time import MixedTimes
from load_tests.simulator.step_tables import StepTable

Row = tuple[float, ...]
Rows = tuple[Row, ...]


def calibrate(
    worker: LiveWorker, points: Points, progress: Callable[[str], None] = lambda line: None
) -> StepTable:
    """Measure all points.

    Args:
        progress: is called with a line about each measurement.

    Raises:
        ValueError: if a batch does not fit the pool.
    """
    bench = StepBench(worker, points)
    bench.warm_up()
    rounds = []
    for number in range(points.rounds):
        progress(f"round {number + 1} of {points.rounds}")
        rounds.append(_measure(bench, points, progress))
    all_decode_s, all_prefill_s, all_added_s = zip(*rounds, strict=True)
    decode_s, added_s = _least_of_rows(all_decode_s), _least_of_rows(all_added_s)
    shared_cost = bench.shared_cost(decode_s)
    if points.shared_len:
        progress(f"a position that all share: {shared_cost:.2f} of another's time")
    config = worker.config
    mixed = MixedTimes(
        batches=points.mixed_batches,
        prompt_lens=points.prompt_lens,
        added_s=added_s,
        padded_len=points.padded_len,
        padded_batch=points.padded_batch,
    )
    return StepTable(
        model=Path(config.model_path).name,
        device=config.device,
        dtype=config.dtype,
        block_size=worker.capacity.block_size,
        machine=machine.describe(),
        batches=points.batches,
        contexts=points.contexts,
        decode_s=decode_s,
        prompt_lens=points.prompt_lens,
        prefill_s=_least(all_prefill_s),
        spread=max(bench.spreads),
        mixed=mixed if added_s else None,
        copied_block_s=bench.copied_block_s,
        swapped_block_s=worker.capacity.block_copy_s,
        n=points.n,
        beam_width=points.beam_width,
        sizes=points.sizes,
        shared_cost=shared_cost,
    )


def _measure(
    bench: StepBench, points: Points, progress: Callable[[str], None]
) -> tuple[Rows, Row, Rows]:
    """Seconds of decodes, of prompts, and of prompts beside decodes."""
    decode_s, added_s = [], []
    for batch in points.batches:
        decode_s.append(bench.decodes(batch))
        progress(f"decode {batch}: {_in_ms(decode_s[-1])} ms")
    prefill_s = tuple(bench.prefill(length) for length in points.prompt_lens)
    progress(f"prefill: {_in_ms(prefill_s)} ms")
    for batch in points.mixed_batches:
        added_s.append(bench.prompts_beside(batch))
        progress(f"prompts beside {batch} decodes: + {_in_ms(added_s[-1])} ms")
    return tuple(decode_s), prefill_s, tuple(added_s)


def _least(rows: Sequence[Row]) -> Row:
    """The least of each place; rows are as long as each other."""
    return tuple(map(min, zip(*rows, strict=True)))


def _least_of_rows(tables: Sequence[Rows]) -> Rows:
    return tuple(_least(rows) for rows in zip(*tables, strict=True))


def _in_ms(times_s: Iterable[float]) -> str:
    return ", ".join(f"{1e3 * seconds:.2f}" for seconds in times_s)
