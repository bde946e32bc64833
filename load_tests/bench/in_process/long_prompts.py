"""Command `prompts`: how long one long prompt takes, by the tokens of a step, and beside others.

By itself a prompt is computed in steps of each size of `--chunks`. Then sequences decode, with a
target for the time of their steps, and the prompt is prefilled beside them: what their steps take
meanwhile, and how much longer the prompt does.
"""

import argparse
import logging
import random
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median, quantiles

from engine.config import EngineConfig
from engine.core.executor import Executor
from engine.types import StepOutput, StepPlan, StepResult
from load_tests import machine, report
from load_tests.local_engine import LocalEngine, greedy, local_config, local_executor
from load_tests.model_folders import model_folder
from load_tests.options import add_model, add_sizes, at_least, positive, several

EXAMPLE = (
    "python -m load_tests prompts --model llama3-8b --device cuda --max-model-len 132096 "
    "--lengths 32768,131072 --chunks 2048,4096,8192,16384"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFigure:
    """One prompt.

    Attributes:
        length: tokens.
        chunk: most tokens of a step.
        beside: sequences that decode meanwhile.
        prompt_s: from the request to its first token.
        step_p50_s, step_p99_s, step_max_s: of the steps until then.
        planning_p99_s: what the scheduler takes of a step.
    """

    length: int
    chunk: int
    beside: int
    prompt_s: float
    step_p50_s: float
    step_p99_s: float
    step_max_s: float
    planning_p99_s: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `prompts`."""
    add_model(parser)
    whole_numbers = several(at_least(1))
    parser.add_argument(
        "--lengths", type=whole_numbers, default=[1024], metavar="N,...", help="tokens of a prompt"
    )
    parser.add_argument(
        "--chunks", type=whole_numbers, default=[2048], metavar="N,...", help="tokens of a step"
    )
    parser.add_argument(
        "--beside", type=at_least(0), default=8, help="sequences that decode; 0: none"
    )
    parser.add_argument(
        "--inter-token-latency-ms", type=positive, default=20.0, help="target of their steps"
    )
    add_sizes(parser)
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, print and write."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    files = report.start(args, "prompts")
    with tempfile.TemporaryDirectory() as name:
        config = local_config(
            model_folder(args.model, Path(name)),
            args.device,
            load_format="dummy",
            num_blocks=args.num_blocks,
            max_num_seqs=max(args.beside + 1, 2),
            max_num_batched_tokens=args.max_num_batched_tokens,
            lone_prompt_tokens=max(args.chunks),
            max_model_len=args.max_model_len,
            inter_token_latency_s=args.inter_token_latency_ms / 1e3,
        )
        executor = _InTurn(local_executor(config))
        figures = []
        for length in args.lengths:
            figures += [_by_itself(config, executor, length, chunk) for chunk in args.chunks]
            if args.beside:
                figures.append(_beside(config, executor, length, args.beside))
        executor.close()
    show(figures)
    files.finish(
        {"model": args.model, "prompts": [asdict(figure) for figure in figures]},
        ", ".join(f"{f.length} by {f.chunk}: {f.prompt_s:.2f} s" for f in figures),
    )
    return 0


class _InTurn:
    """An executor that serves one scheduler after another, so that the model is loaded once.

    The last rows that a scheduler has freed would be released with its next plan: here with the
    first one of the next scheduler.
    """

    def __init__(self, executor: Executor) -> None:
        self.capacity = executor.capacity
        self.run_ahead = executor.run_ahead
        self._executor = executor
        self._rows: set[int] = set()

    def submit(self, plan: StepPlan) -> None:
        """See `Executor.submit`."""
        if not plan.step:
            plan.releases.extend(self._rows)
        self._rows.difference_update(plan.releases)
        self._rows.update(admission.row for admission in plan.admissions)
        self._executor.submit(plan)

    def collect(self) -> StepResult:
        """See `Executor.collect`."""
        return self._executor.collect()

    def close(self) -> None:
        """See `Executor.close`."""
        self._executor.close()


def show(figures: list[PromptFigure]) -> None:
    """Print the table."""
    rows = [
        (
            f"{figure.length} by {figure.chunk}"
            + (f" beside {figure.beside}" if figure.beside else ""),
            f"{figure.prompt_s:.3f}",
            f"{figure.length / figure.prompt_s:,.0f}",
            *(f"{1e3 * each:.1f}" for each in (figure.step_p50_s, figure.step_p99_s)),
            f"{1e3 * figure.step_max_s:.1f}",
            f"{1e3 * figure.planning_p99_s:.2f}",
        )
        for figure in figures
    ]
    titles = ("prompt", "s", "tok/s", "step p50\nms", "p99\nms", "longest\nms", "planning\np99 ms")
    report.print_table(f"{machine.name()}: long prompts", titles, rows)


def _by_itself(config: EngineConfig, executor: Executor, length: int, chunk: int) -> PromptFigure:
    scheduler = config.scheduler
    budget = min(chunk, scheduler.max_num_batched_tokens)
    changed = replace(scheduler, lone_prompt_tokens=chunk, max_num_batched_tokens=budget)
    engine = LocalEngine(replace(config, scheduler=changed), executor)
    return _timed(engine, config, length, chunk=chunk, beside=0)


def _beside(config: EngineConfig, executor: Executor, length: int, beside: int) -> PromptFigure:
    engine = LocalEngine(config, executor)
    output_len = config.scheduler.max_model_len - 64
    for _ in range(beside):
        engine.add(_prompt(config, 32), greedy(output_len))
    # the scheduler learns what decodes and prompts beside them take
    for _ in range(16):
        engine.step()
    engine.add(_prompt(config, min(length, 1024)), greedy(1))
    for _ in range(32):
        engine.step()
    chunk = config.scheduler.max_num_batched_tokens
    return _timed(engine, config, length, chunk=chunk, beside=beside)


def _timed(
    engine: LocalEngine, config: EngineConfig, length: int, *, chunk: int, beside: int
) -> PromptFigure:
    request_id = engine.next_id
    engine.add(_prompt(config, length), greedy(1))
    steps: list[float] = []
    planning: list[float] = []
    began_s = last_s = time.perf_counter()
    output: StepOutput | None = None
    while output is None or request_id not in output.request_ids:
        output = engine.step()
        now_s = time.perf_counter()
        steps.append(now_s - last_s)
        planning.append(output.stats.schedule_s if output is not None else 0.0)
        last_s = now_s
    engine.abort_all()
    return PromptFigure(
        length=length,
        chunk=chunk,
        beside=beside,
        prompt_s=last_s - began_s,
        step_p50_s=median(steps),
        step_p99_s=_p99(steps),
        step_max_s=max(steps),
        planning_p99_s=_p99(planning),
    )


def _p99(values: list[float]) -> float:
    return quantiles([*values, values[-1]], n=100, method="inclusive")[-1]


def _prompt(config: EngineConfig, length: int) -> list[int]:
    return random.Random(length).choices(range(config.model.vocab_size), k=length)
