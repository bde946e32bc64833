"""The simulator with the step times of the card: cells, and the rates that saturate it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

from engine.types import Capacity
from load_tests.figures import cells, workloads
from load_tests.figures.definitions import Cell
from load_tests.figures.live.catalogue import Kind, Load, Rates, kind_of
from load_tests.figures.live.runs import Run, simulated_steps, tokens_per_s, write_run
from load_tests.figures.workloads import Files
from load_tests.parallel import in_order
from load_tests.simulator.replay import Setup, replay
from load_tests.simulator.step_tables import StepTable
from load_tests.simulator.step_time import StepTime
from load_tests.traffic.schedule import at_once

# more than any card serves while its sustained rate is looked for
_NUM_QUEUED = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What the simulator must know of an engine.

    Attributes:
        capacity: with blocks of 16 tokens.
        tables: step times by kind of request, see `kind_of`.
    """

    capacity: Capacity
    run_ahead: int
    tables: Mapping[Kind, StepTable]

    def step_time(self, cell: Cell) -> StepTime:
        """How long steps with the requests of a cell take."""
        setup = cells.setup(cell)
        # who finds no prefix has all tokens of all prompts in blocks of their own
        is_shared = setup.config.memory_policy == "paged"
        return self.tables[kind_of(cell)].step_time(setup.shared_prefix_len if is_shared else 0)

    def run_ahead_of(self, cell: Cell) -> int:
        """Plans in flight, see `LiveWorker.turn`."""
        return 1 if cell.beam_width else self.run_ahead

    def launched_len(self, cell: Cell) -> int | None:
        """Tokens of prompts from which a step is launched while the one before it runs.

        None where no plan is in flight beside another.
        """
        mixed = self.tables[kind_of(cell)].mixed
        return mixed.padded_len + 1 if mixed and self.run_ahead_of(cell) > 1 else None

    def setup(self, cell: Cell) -> Setup:
        """The paper's experiment on this card."""
        return replace(
            cells.setup(cell),
            capacity=capacity_of(cell, self.capacity),
            step_time=self.step_time(cell),
            run_ahead=self.run_ahead_of(cell),
        )


def capacity_of(cell: Cell, capacity: Capacity) -> Capacity:
    """The same memory in blocks of the cell's size."""
    size, factor = cell.block_size, cell.block_size / capacity.block_size
    return replace(
        capacity,
        block_size=size,
        num_blocks=capacity.num_slots // size,
        num_swap_blocks=int(capacity.num_swap_blocks / factor),
        block_copy_s=capacity.block_copy_s * factor,
    )


def simulate(task: tuple[Cell, Path], card: Card, files: Files) -> None:
    """Simulate a cell and write its run."""
    cell, path = task
    until_s = float("inf") if cell.window_from_s is None else cell.duration_s
    done = replay(card.setup(cell), cells.schedule_of(cell, files), until_s=until_s)
    run = Run(
        cell=cell,
        requests=done.requests,
        steps=simulated_steps(done.samples),
        result=cells.result_of(cell, done),
        machine={},
    )
    write_run(path, run)


def saturating_rates(
    card: Card, loads: Sequence[Load], files: Files, seconds: float, num_processes: int
) -> Rates:
    """Find what loads can sustain: tokens per second behind a queue that never empties.

    Args:
        seconds: of virtual time; the first third is left out.
    """
    work = partial(_saturating_rate, card=card, files=files, seconds=seconds)
    return dict(zip(loads, in_order(work, loads, num_processes), strict=True))


def _saturating_rate(load: Load, card: Card, files: Files, seconds: float) -> float:
    cell = Cell(
        workload=load.workload,
        n=load.n,
        beam_width=load.beam_width,
        system=load.system,
        rate_per_s=0.0,
        duration_s=seconds,
    )
    schedule = at_once(workloads.lengths(load.workload, files), _NUM_QUEUED, 0)
    done = replay(card.setup(cell), schedule, until_s=seconds)
    steps = simulated_steps(done.window(seconds / 3, float("inf")))
    output_len = fmean(request.output_len for request in schedule)
    return tokens_per_s(steps) / (load.n * output_len)
