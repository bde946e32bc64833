"""The simulator with the step times of this machine: cells, and the rates that saturate it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from engine.types import Capacity
from load_tests.paper.experiments import workloads
from load_tests.paper.experiments.cells import Cell
from load_tests.paper.experiments.live_catalogue import Kind, Load, Saturating, kind_of
from load_tests.paper.experiments.workloads import Files
from load_tests.paper.runners import simulated
from load_tests.paper.runners.results import requests_per_s, result_of, simulated_steps
from load_tests.paper.runners.stored_runs import CellRun
from load_tests.parallel import in_order
from load_tests.simulator.replay import Setup, replay
from load_tests.simulator.step_tables import StepTable
from load_tests.simulator.step_time import StepTime
from load_tests.traffic.schedule import at_once

# more than any card serves while its sustained rate is looked for
_NUM_QUEUED = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCard:
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
        setup = simulated.setup(cell)
        # systems that find no prefix keep all tokens of all prompts in blocks of their own
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
            simulated.setup(cell),
            capacity=_capacity(cell, self.capacity),
            step_time=self.step_time(cell),
            run_ahead=self.run_ahead_of(cell),
        )


def simulate(cell: Cell, card: MeasuredCard, files: Files) -> CellRun:
    """Simulate a cell on a card."""
    done = replay(card.setup(cell), simulated.schedule_of(cell, files), until_s=cell.until_s)
    steps = simulated_steps(done.samples)
    result = result_of(cell, done, steps)
    return CellRun(cell=cell, result=result, requests=done.requests, steps=steps)


def saturating_rates(
    card: MeasuredCard, loads: Sequence[Load], files: Files, seconds: float, num_processes: int
) -> Saturating:
    """Find what loads can sustain: requests per second behind a queue that never empties.

    Args:
        seconds: of virtual time; the first third is left out.
    """
    work = partial(_saturating_rate, card=card, files=files, seconds=seconds)
    return dict(zip(loads, in_order(work, loads, num_processes), strict=True))


def _saturating_rate(load: Load, card: MeasuredCard, files: Files, seconds: float) -> float:
    schedule = at_once(workloads.lengths(load.workload, files), _NUM_QUEUED, 0)
    done = replay(card.setup(load.cell(0.0, seconds)), schedule, until_s=seconds)
    steps = simulated_steps(done.window(seconds / 3, float("inf")))
    return requests_per_s(steps, schedule, load.n)


def _capacity(cell: Cell, capacity: Capacity) -> Capacity:
    """The same memory in blocks of the cell's size."""
    size, factor = cell.block_size, cell.block_size / capacity.block_size
    return replace(
        capacity,
        block_size=size,
        num_blocks=capacity.num_slots // size,
        num_swap_blocks=int(capacity.num_swap_blocks / factor),
        block_copy_s=capacity.block_copy_s * factor,
    )
