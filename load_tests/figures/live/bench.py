"""The engine that is measured: its workers, its step times, and its cells."""

import gc
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import get_args

from engine.config import Device, DType, EngineConfig
from engine.executor.simulated import BeamAncestry
from engine.types import Capacity
from engine.worker.graphs.graph_batch import (
    GraphShape,
    mixed_shapes,
    searching_mixed_shapes,
    searching_shapes,
)
from load_tests import machine
from load_tests.calibrate.live_worker import LiveWorker, Sizes, Turn, live_config
from load_tests.calibrate.measure import calibrate
from load_tests.calibrate.points import DEFAULT_POINTS, Points
from load_tests.calibrate.step_tables import read_table, write_table
from load_tests.clocks import LiveClock
from load_tests.figures import cells
from load_tests.figures.definitions import Cell
from load_tests.figures.live.catalogue import Kind
from load_tests.figures.live.runs import Run, measured_steps, write_run
from load_tests.figures.live.simulated import Card
from load_tests.figures.models import BLOCK_SIZE, MAX_MODEL_LEN
from load_tests.figures.workloads import Files
from load_tests.simulation import Replay, Setup, replay
from load_tests.traffic.schedule import Schedule, TimedRequest

# requests of several sequences
_SEVERAL = Points(
    batches=(4, 32, 64, 72, 96, 104, 128, 160, 256),
    contexts=(32, 128, 512, 2048),
    prompt_lens=(32, 128, 2560),
    mixed_batches=(4, 64, 128, 256),
    brief_batches=(64, 72, 96, 104, 160),
    n=4,
    repeats=10,
    num_mixed=6,
)
_CPU_PLAIN = Points(
    batches=(1, 4, 16, 64, 128, 256),
    contexts=(32, 128, 512, 1900, 2048),
    prompt_lens=(16, 64, 256, 1024, 2560),
    mixed_batches=(4, 32, 256),
    shared_len=512,
)
# for traces of a second
_FEW = Points(
    batches=(4, 64),
    contexts=(32, 128, 1900, 2048),
    prompt_lens=(16, 2560),
    mixed_batches=(4, 64),
    shared_len=128,
    repeats=4,
    num_mixed=2,
)


# warm-up: input and output of requests that come at once; every kind of step is among them
_FIRST = tuple(
    TimedRequest(due_s=0.0, input_len=input_len, output_len=8) for input_len in (*[8] * 8, 1100)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Which engine.

    Attributes:
        folder: of the model.
        num_blocks: that cells may use, of 16 tokens.
        most_blocks: of the pool while steps are calibrated; 0 for all that fit.
        swap_bytes: for preempted requests.
        is_coarse: whether few step times do.
    """

    folder: Path
    device: Device
    dtype: DType
    num_blocks: int
    most_blocks: int
    swap_bytes: int
    is_coarse: bool = False

    @property
    def max_num_seqs(self) -> int:
        """Rows of a cell's batch: as many as there are step times for."""
        return max(self.points["plain"].batches)

    @property
    def points(self) -> dict[Kind, Points]:
        """What is calibrated."""
        plain, several = _CPU_PLAIN, _SEVERAL
        if self.is_coarse:
            plain, several = _FEW, replace(_FEW, n=4, shared_len=0)
        elif self.device == "cuda":
            # few sequences are longer
            plain = replace(DEFAULT_POINTS["cuda"], contexts=(32, 128, 512, MAX_MODEL_LEN))
        # a search waits for the host in every step
        samples, beams = several, replace(several, beam_width=several.n, rounds=2)
        if self.device == "cuda":
            limits = max(plain.batches), plain.budget
            samples = replace(_like_graphs(samples, mixed_shapes(*limits)), sizes=plain.sizes)
            sizes = tuple(sorted({v.num_decodes for v in searching_shapes(limits[0])}))
            beams = replace(_like_graphs(beams, searching_mixed_shapes(*limits)), sizes=sizes)
        return {"plain": plain, "samples": samples, "beams": beams}

    def blocks(self, block_size: int) -> int:
        """How many blocks of a size make the same memory."""
        return self.num_blocks * BLOCK_SIZE // block_size

    def config(self, block_size: int) -> EngineConfig:
        """Of a worker with blocks of a size."""
        sizes = Sizes(
            max_num_seqs=max(points.num_rows for points in self.points.values()),
            max_num_batched_tokens=max(points.budget for points in self.points.values()),
            max_model_len=MAX_MODEL_LEN,
            num_blocks=(self.most_blocks if block_size == BLOCK_SIZE else self.blocks(block_size)),
            block_size=block_size,
            swap_bytes=self.swap_bytes,
        )
        return live_config(self.folder, self.device, self.dtype, sizes)


class Bench:
    """Makes workers when they are needed, one at a time."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._worker: LiveWorker | None = None
        self._machine = machine.describe()

    def calibrate(
        self, folder: Path, kinds: Sequence[Kind], progress: Callable[[str], None]
    ) -> None:
        """Measure step times that are missing and write what `read_card` reads."""
        settings = self.settings
        for kind in kinds:
            if not (path := folder / f"steps_{kind}.json").exists():
                progress(f"step times, {kind}")
                worker = self._use(BLOCK_SIZE)
                write_table(path, calibrate(worker, settings.points[kind], progress))
        if not (path := folder / "card.json").exists():
            worker = self._use(BLOCK_SIZE)
            capacity = replace(
                worker.capacity, num_blocks=settings.num_blocks, num_rows=settings.max_num_seqs
            )
            document = {"capacity": asdict(capacity), "run_ahead": worker.config.run_ahead}
            path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    def measure(self, task: tuple[Cell, Path], files: Files) -> float:
        """Run a cell, write its run, and return the seconds that it took."""
        cell, path = task
        worker = self._use(cell.block_size)
        start_s = time.perf_counter()
        setup = cells.setup(cell)
        _replay(self._turn(worker, cell), setup, _FIRST)
        turn = self._turn(worker, cell)
        until_s = float("inf") if cell.window_from_s is None else cell.duration_s
        done = _replay(turn, setup, cells.schedule_of(cell, files), until_s)
        run = Run(
            cell=cell,
            requests=done.requests,
            steps=measured_steps(done, turn.steps[: len(done.samples)]),
            result=cells.result_of(cell, done),
            machine=self._machine,
        )
        write_run(path, run)
        return time.perf_counter() - start_s

    def close(self) -> None:
        """Give the memory back."""
        if self._worker:
            self._worker.close()
            self._worker = None
            # graphs and modules refer to each other
            gc.collect()

    def _turn(self, worker: LiveWorker, cell: Cell) -> Turn:
        settings, replacement = self.settings, cells.setup(cell).replacement
        return worker.turn(
            num_blocks=settings.blocks(cell.block_size),
            num_rows=settings.max_num_seqs,
            ancestry=BeamAncestry(replacement=replacement) if cell.beam_width else None,
        )

    def _use(self, block_size: int) -> LiveWorker:
        if self._worker and self._worker.capacity.block_size != block_size:
            self.close()
        self._worker = self._worker or LiveWorker(self.settings.config(block_size))
        return self._worker


def _like_graphs(points: Points, shapes: Sequence[GraphShape]) -> Points:
    """Measure prompts beside decodes in the sizes of their graphs, and just beyond."""
    lens = sorted({shape.num_prompt_tokens for shape in shapes})
    batches = tuple(sorted({shape.num_decodes for shape in shapes}))
    return replace(
        points,
        prompt_lens=(*lens, lens[-1] + 1, max(points.prompt_lens)),
        mixed_batches=batches,
        padded_len=lens[-1],
        padded_batch=batches[-1],
    )


def read_card(folder: Path) -> Card:
    """Read what `Bench.calibrate` has written."""
    document = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    paths = {kind: folder / f"steps_{kind}.json" for kind in get_args(Kind)}
    return Card(
        capacity=Capacity(**document["capacity"]),
        run_ahead=document["run_ahead"],
        tables={kind: read_table(path) for kind, path in paths.items() if path.exists()},
    )


def _replay(turn: Turn, setup: Setup, schedule: Schedule, until_s: float = float("inf")) -> Replay:
    setup = replace(setup, capacity=turn.capacity)
    try:
        return replay(setup, schedule, until_s=until_s, executor=turn, clock=LiveClock(turn.timer))
    finally:
        turn.close()
