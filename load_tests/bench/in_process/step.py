"""Command `step`: the time of single steps, in process, as they are served.

Decode steps are timed with every sequence alive and nothing arriving; mixed steps decode a batch
and prefill a prompt at once. A step's time is that between two results; the device is idle for
what its own clock does not account for.
"""

import argparse
import gc
import logging
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from engine.config import EngineConfig, ModelConfig
from engine.integers import div_ceil
from engine.types import FinishReason, StepStats
from load_tests import machine, report
from load_tests.bench.in_process import kernel_times
from load_tests.bench.in_process.row_kinds import KINDS, sampling_of, write_tokenizer
from load_tests.card import Ceilings, find_ceilings
from load_tests.local_engine import LocalEngine, local_config
from load_tests.model_folders import model_folder
from load_tests.options import add_model, add_ranks, add_sizes, at_least, several
from load_tests.plots import panels, save
from load_tests.simulator.roofline import roofline_of
from load_tests.simulator.step_time import StepWork

EXAMPLE = "python -m load_tests step --model llama3-8b --device cuda --batches 1,8,64,256"

# steps at the start and the end of a batch that are not timed: the pipeline fills and drains
_NUM_SKIPPED = 4
_COLUMNS = ("step", "context", "ms", "device\nms", "idle\n%", "tok/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Equal steps.

    Attributes:
        batch: sequences that decode.
        chunk: tokens of a prompt that are prefilled beside.
        context: tokens of each decoding sequence, on average, those that have left a window too.
        step_s: mean time from one result to the next.
        device_s: mean time by the device's own clock.
    """

    batch: int
    chunk: int
    context: float
    step_s: float
    device_s: float
    num_steps: int

    @property
    def idle(self) -> float:
        """Share of the time in which the device had nothing to do."""
        return max(0.0, 1 - self.device_s / self.step_s)

    @property
    def work(self) -> StepWork:
        """What each of the steps computed."""
        return StepWork.alike(self.batch, round(self.context), self.chunk)


class _Step(NamedTuple):
    """One result, the seconds since the one before, and tokens of the batch that decodes."""

    interval_s: float
    stats: StepStats
    num_tokens: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `step`."""
    add_model(parser)
    whole_numbers = several(at_least(1))
    parser.add_argument(
        "--batches", type=whole_numbers, default=[1, 8], metavar="N,...", help="that decode"
    )
    parser.add_argument(
        "--inputs", type=whole_numbers, default=[512], metavar="N,...", help="tokens of a prompt"
    )
    parser.add_argument("--steps", type=at_least(16), default=128, help="of each batch")
    parser.add_argument(
        "--chunks",
        type=several(at_least(2)),
        default=[],
        metavar="N,...",
        help="tokens prefilled beside half of the largest batch in mixed steps",
    )
    add_sizes(parser)
    parser.add_argument("--rows", choices=KINDS, default="plain", help="what rows ask for")
    parser.add_argument(
        "--every", type=at_least(1), default=1, metavar="N", help="row asks for it, the rest plain"
    )
    add_ranks(parser)
    parser.add_argument("--no-peer-memory", action="store_true", help="let NCCL sum everything")
    parser.add_argument("--no-graphs", action="store_true", help="launch every kernel by itself")
    parser.add_argument(
        "--profile",
        action="store_true",
        help="decode each batch once more, and show the device's time by kernel",
    )
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Time all steps, then print, write and draw them."""
    if args.profile and args.tensor_parallel > 1:
        raise ValueError("--profile sees this process only: leave out --tensor-parallel")
    # the worker logs memory and graphs
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    files = report.start(args, "step")
    one_card = {} if args.device == "cpu" else find_ceilings()
    ceilings = {name: card.of_cards(args.tensor_parallel) for name, card in one_card.items()}
    with tempfile.TemporaryDirectory() as name:
        folder = model_folder(args.model, Path(name))
        config = engine_config(args, folder)
        if args.rows == "grammar" and not (folder / "tokenizer.json").exists():
            write_tokenizer(folder, config.model.num_choices)
        timer = StepTimer(config, args.rows, args.every)
        # read by the first row that needs it, while its folder is there
        timer.decode(1, min(args.inputs), 16)
    timed = [timer.decode(b, length, args.steps) for length in args.inputs for b in args.batches]
    if args.profile:
        for batch in args.batches:
            steps = timer.decode_steps(batch, args.inputs[0], args.steps)
            kernel_times.show(f"a step that decodes {batch}", kernel_times.profile_steps(steps))
    half = max(1, max(args.batches) // 2)
    mixed = [timer.mixed(half, chunk, args.inputs[0]) for chunk in args.chunks]
    timer.close()
    show([*timed, *mixed], config.model, ceilings)
    _plot(timed, config.model, ceilings, files.path(".png"))
    figures = {
        "model": args.model,
        "rows": args.rows,
        "every": args.every,
        "tensor_parallel": args.tensor_parallel,
        "config": {"num_blocks": timer.num_blocks, "graphs": config.graphs},
        "ceilings": {name: asdict(limits) for name, limits in ceilings.items()},
        "steps": [asdict(step) for step in (*timed, *mixed)],
    }
    files.finish(figures, ", ".join(f"batch {t.batch}: {1e3 * t.step_s:.2f} ms" for t in timed))
    return 0


def engine_config(args: argparse.Namespace, folder: Path) -> EngineConfig:
    """Configure an engine with random weights for the options of the command."""
    return local_config(
        folder,
        args.device,
        load_format="dummy",
        num_blocks=args.num_blocks,
        max_num_seqs=max(args.batches),
        max_num_batched_tokens=max(args.max_num_batched_tokens, max(args.batches)),
        max_model_len=args.max_model_len,
        graphs=not args.no_graphs,
        tensor_parallel_size=args.tensor_parallel,
        peer_memory=not args.no_peer_memory,
    )


class StepTimer:
    """An engine with random prompts.

    Attributes:
        num_blocks: of its pool.
    """

    def __init__(self, config: EngineConfig, rows: str = "plain", every: int = 1) -> None:
        """Prepare for batches of which every n-th row is of a kind.

        Args:
            rows: of `row_kinds.KINDS`; the other rows are plain.
        """
        self._rows, self._every = rows, every
        self._engine = LocalEngine(config)
        self.num_blocks = self._engine.executor.capacity.num_blocks
        self._budget = config.scheduler.max_num_batched_tokens
        self._last_s = time.perf_counter()
        self._vocab_size = config.model.vocab_size
        self._random = random.Random(0)
        # requests of the batch that decodes, and their tokens
        self._batch = range(0)
        self._num_tokens = 0
        gc.freeze()

    def decode(self, batch: int, input_len: int, num_steps: int) -> Timed:
        """Time decode steps of a batch, from the prompts' length on."""
        self._add_batch(batch, input_len, num_steps)
        decodes = [step for step in self._drain() if step.stats.num_tokens == batch]
        return _timed(decodes[_NUM_SKIPPED:-_NUM_SKIPPED], batch, 0)

    def decode_steps(self, batch: int, input_len: int, num_steps: int) -> Callable[[], int]:
        """Prefill a batch; what is returned takes its decode steps, and gives their number."""
        self._add_batch(batch, input_len, num_steps)
        while not any(step.stats.num_tokens == batch for step in self._step()):
            pass
        return lambda: len(self._drain())

    def mixed(self, batch: int, chunk: int, input_len: int, num_steps: int = 16) -> Timed:
        """Time steps of a batch that decodes, each of which prefills another prompt too."""
        self._add_batch(batch, input_len, num_steps)
        steps: list[_Step] = []
        while not steps or steps[-1].stats.num_tokens != batch:
            steps += self._step()
        steps.clear()
        for _ in range(num_steps):
            self._add(1, chunk, 1)
            steps += self._step()
        steps += self._drain()
        mixed = [step for step in steps if step.stats.num_tokens == batch + chunk]
        return _timed(mixed[_NUM_SKIPPED:], batch, chunk)

    def close(self) -> None:
        """Give the memory back."""
        self._engine.close()

    def _add_batch(self, batch: int, input_len: int, num_steps: int) -> None:
        # the first sequences go on while the last ones are still prefilled
        num_prefills = div_ceil(batch * input_len, self._budget - batch + 1)
        self._batch = range(self._engine.next_id, self._engine.next_id + batch)
        self._num_tokens = batch * input_len
        self._add(batch, input_len, num_prefills + num_steps + 2 * _NUM_SKIPPED)

    def _add(self, count: int, input_len: int, output_len: int) -> None:
        for place in range(count):
            prompt = self._random.choices(range(self._vocab_size), k=input_len)
            kind = "plain" if place % self._every else self._rows
            self._engine.add(prompt, sampling_of(kind, output_len))

    def _drain(self) -> list[_Step]:
        steps: list[_Step] = []
        while self._engine.has_work:
            steps += self._step()
        return steps

    def _step(self) -> list[_Step]:
        output = self._engine.step()
        now_s = time.perf_counter()
        interval_s, self._last_s = now_s - self._last_s, now_s
        if output is None:
            return []
        if FinishReason.ERROR in output.finish_reasons:
            raise ValueError("the model computes what are no numbers (NaN): no steps to time")
        step = _Step(interval_s, output.stats, self._num_tokens)
        self._num_tokens += sum(each in self._batch for each in output.request_ids.tolist())
        return [step]


def show(timed: Sequence[Timed], model: ModelConfig, ceilings: dict[str, Ceilings]) -> None:
    """Print the table."""
    rows = []
    for step in timed:
        name = f"decode {step.batch}" + (f" + prefill {step.chunk}" if step.chunk else "")
        figures = (
            f"{step.context:.0f}",
            f"{1e3 * step.step_s:.2f}",
            f"{1e3 * step.device_s:.2f}",
            f"{100 * step.idle:.1f}",
            f"{(step.batch + step.chunk) / step.step_s:,.0f}",
        )
        shares = [100 * _least_s(step, model, limits) / step.step_s for limits in ceilings.values()]
        rows.append((name, *figures, *(f"{share:.0f}" for share in shares)))
    titles = (*_COLUMNS, *(f"% of\n{name}" for name in ceilings))
    report.print_table(f"{machine.name()}: single steps", titles, rows)


def _timed(steps: Sequence[_Step], batch: int, chunk: int) -> Timed:
    if not steps:
        raise ValueError(
            f"no step held {batch} sequences and {chunk} tokens of a prompt: raise --num-blocks or "
            "--max-num-batched-tokens, or lower the batch"
        )
    return Timed(
        batch=batch,
        chunk=chunk,
        context=fmean(step.num_tokens for step in steps) / batch,
        step_s=fmean(step.interval_s for step in steps),
        device_s=fmean(step.stats.elapsed_s for step in steps),
        num_steps=len(steps),
    )


def _least_s(step: Timed, model: ModelConfig, limits: Ceilings) -> float:
    return roofline_of(model, limits).seconds(step.work)


def _plot(
    timed: Sequence[Timed], model: ModelConfig, ceilings: dict[str, Ceilings], path: Path
) -> None:
    """Draw the time of decode steps against the batch, beside the least possible."""
    figure, [panel] = panels(1, 6, 4)
    batches = [step.batch for step in timed]
    panel.plot(batches, [1e3 * step.step_s for step in timed], "o-", label="measured")
    for name, limits in ceilings.items():
        least_ms = [1e3 * _least_s(step, model, limits) for step in timed]
        panel.plot(batches, least_ms, "--", label=f"least by {name}")
    panel.set(xlabel="sequences in the batch", ylabel="ms per decode step", ylim=(0, None))
    panel.set_title(machine.name(), fontsize=9)
    panel.grid(alpha=0.3)
    panel.legend(frameon=False)
    save(figure, path)
