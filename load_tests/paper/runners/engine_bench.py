"""The engine under test: its workers, its step times, and its cells."""

import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import get_args

from engine.config import Device, EngineConfig
from engine.types import Capacity
from engine.worker.graphs.graph_batch import (
    GraphShape,
    decode_sizes,
    mixed_shapes,
    searching_mixed_shapes,
    searching_shapes,
)
from load_tests import machine
from load_tests.model_folders import dtype_of
from load_tests.paper.experiments.cells import Cell
from load_tests.paper.experiments.live_catalogue import Kind
from load_tests.paper.experiments.opt_models import (
    BLOCK_SIZE,
    MAX_MODEL_LEN,
    MODELS,
    SWAP_BYTES,
    paper_model,
)
from load_tests.paper.experiments.workloads import Files
from load_tests.paper.runners import simulated
from load_tests.paper.runners.measured_card import MeasuredCard
from load_tests.paper.runners.results import result_of
from load_tests.paper.runners.stored_runs import CellRun, RunStep
from load_tests.report import write_json
from load_tests.simulator.calibrate.live_worker import (
    LiveStep,
    LiveWorker,
    Turn,
    live_config,
)
from load_tests.simulator.calibrate.measure import calibrate
from load_tests.simulator.calibrate.points import DEFAULT_POINTS, Points
from load_tests.simulator.clocks import LiveClock
from load_tests.simulator.replay import Replay, Setup, replay
from load_tests.simulator.simulated_executor import BeamAncestry
from load_tests.simulator.step_tables import read_table, write_table
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
    contexts=(32, 128, 2048),
    prompt_lens=(16, 2560),
    mixed_batches=(4, 64),
    # a large batch of long contexts takes longer than all else, and few cells have one
    brief_batches=(64,),
    shared_len=128,
    repeats=2,
    num_mixed=2,
)
# of its requests, which have some 30 blocks of 16, 981 blocks hold 35 and 606 hold 20
_MOST_OF_SHAREGPT = 64
# pinned memory takes a second for every few GiB, and what is preempted here needs little
_SWAP_BYTES = SWAP_BYTES // 10
_CPU_SWAP_BYTES = 64 << 20
# of a CPU's pool while steps are calibrated
_CPU_BLOCKS = 4096
# warm-up: input and output of requests that come at once; every kind of step is among them
_FIRST = tuple(
    TimedRequest(due_s=0.0, input_len=input_len, output_len=8) for input_len in (*[8] * 8, 1100)
)


@dataclass(frozen=True, slots=True)
class EngineUnderTest:
    """Which engine.

    Attributes:
        folder: of the model.
        is_coarse: whether few step times do.
        tensor_parallel: GPUs that share the model.
        has_few_rows: whether all requests are ShareGPT's, of which few fit. On GPUs less is
            calibrated then, and fewer graphs are captured.
    """

    folder: Path
    device: Device
    is_coarse: bool
    tensor_parallel: int = 1
    has_few_rows: bool = False

    @property
    def paper_model(self) -> str:
        """Which of the paper's models it is, or is put in the place of."""
        return paper_model(self.folder.name)

    @property
    def num_blocks(self) -> int:
        """Blocks of 16 tokens that cells may use: as many as the paper's cards have for it."""
        return MODELS[self.paper_model].num_blocks

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
            if self.has_few_rows:
                return {"plain": _up_to(_MOST_OF_SHAREGPT, plain)}
        # a search waits for the host in every step
        rounds = 1 if self.is_coarse else 2
        samples, beams = several, replace(several, beam_width=several.n, rounds=rounds)
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
        # steps are calibrated with all that fit a GPU
        all_blocks = _CPU_BLOCKS if self.device == "cpu" else 0
        return live_config(
            self.folder,
            self.device,
            dtype_of(self.folder),
            max_num_seqs=max(points.num_rows for points in self.points.values()),
            max_num_batched_tokens=max(points.budget for points in self.points.values()),
            max_model_len=MAX_MODEL_LEN,
            num_blocks=all_blocks if block_size == BLOCK_SIZE else self.blocks(block_size),
            block_size=block_size,
            tensor_parallel_size=self.tensor_parallel,
            swap_bytes=_CPU_SWAP_BYTES if self.device == "cpu" else _SWAP_BYTES,
        )


class EngineBench:
    """Makes workers when they are needed, one at a time."""

    def __init__(self, engine: EngineUnderTest) -> None:
        self.engine = engine
        self._worker: LiveWorker | None = None
        self._machine = machine.describe()

    def calibrate(
        self, folder: Path, kinds: Sequence[Kind], progress: Callable[[str], None]
    ) -> None:
        """Measure step times that are missing and write what `read_card` reads."""
        engine = self.engine
        for kind in kinds:
            path = folder / f"steps_{kind}.json"
            if not path.exists() or read_table(path).batches[-1] < engine.points[kind].batches[-1]:
                progress(f"step times, {kind}")
                worker = self._use(BLOCK_SIZE)
                write_table(path, calibrate(worker, engine.points[kind], progress))
        path = folder / "card.json"
        if not path.exists() or _num_rows(path) != engine.max_num_seqs:
            worker = self._use(BLOCK_SIZE)
            capacity = replace(
                worker.capacity, num_blocks=engine.num_blocks, num_rows=engine.max_num_seqs
            )
            held = asdict(capacity)
            # what the swap space holds is no setting
            del held["swap_keys"]
            document = {"capacity": held, "run_ahead": worker.config.run_ahead}
            write_json(path, document)

    def measure(self, cell: Cell, files: Files) -> CellRun:
        """Run a cell on an engine whose steps have all been taken before."""
        worker = self._use(cell.block_size)
        setup = simulated.setup(cell)
        _replay(self._turn(worker, cell), setup, _FIRST)
        turn = self._turn(worker, cell)
        done = _replay(turn, setup, simulated.schedule_of(cell, files), cell.until_s)
        steps = _measured_steps(done, turn.steps[: len(done.samples)])
        return CellRun(
            cell=cell,
            result=result_of(cell, done, steps),
            requests=done.requests,
            steps=steps,
            machine=self._machine,
        )

    def close(self) -> None:
        """Give the memory back."""
        if self._worker:
            self._worker.close()
            self._worker = None
            # graphs and modules refer to each other
            gc.collect()

    def _turn(self, worker: LiveWorker, cell: Cell) -> Turn:
        engine, replacement = self.engine, simulated.setup(cell).replacement
        return worker.turn(
            num_blocks=engine.blocks(cell.block_size),
            num_rows=engine.max_num_seqs,
            ancestry=BeamAncestry(replacement=replacement) if cell.beam_width else None,
        )

    def _use(self, block_size: int) -> LiveWorker:
        if self._worker and self._worker.capacity.block_size != block_size:
            self.close()
        self._worker = self._worker or LiveWorker(self.engine.config(block_size))
        return self._worker


def _num_rows(card: Path) -> int:
    rows: int = json.loads(card.read_text(encoding="utf-8"))["capacity"]["num_rows"]
    return rows


def _up_to(num_rows: int, points: Points) -> Points:
    """Measure no larger batches, and no prefix."""
    fewer = replace(
        points,
        batches=tuple(size for size in points.batches if size <= num_rows),
        brief_batches=tuple(size for size in points.brief_batches if size <= num_rows),
        sizes=tuple(decode_sizes(num_rows)),
        shared_len=0,
    )
    return _like_graphs(fewer, mixed_shapes(num_rows, fewer.budget))


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


def read_card(folder: Path) -> MeasuredCard:
    """Read what `EngineBench.calibrate` has written."""
    document = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    paths = {kind: folder / f"steps_{kind}.json" for kind in get_args(Kind)}
    return MeasuredCard(
        capacity=Capacity(**document["capacity"]),
        run_ahead=document["run_ahead"],
        tables={kind: read_table(path) for kind, path in paths.items() if path.exists()},
    )


def _measured_steps(done: Replay, steps: Sequence[LiveStep]) -> tuple[RunStep, ...]:
    """Put together what the replay and the worker saw of each step."""
    return tuple(
        RunStep(
            end_s=sample.end_s,
            step_s=step.step_s,
            num_sequences=sample.num_sequences,
            num_decodes=step.work.num_decodes,
            num_positions=step.work.num_decode_positions,
            num_prompt_tokens=step.work.num_prompt_tokens,
            num_copied_blocks=step.work.num_copied_blocks,
            num_swapped_blocks=step.work.num_swapped_blocks,
        )
        for sample, step in zip(done.samples, steps, strict=True)
    )


def _replay(turn: Turn, setup: Setup, schedule: Schedule, until_s: float = float("inf")) -> Replay:
    setup = replace(setup, capacity=turn.capacity)
    try:
        return replay(setup, schedule, until_s=until_s, executor=turn, clock=LiveClock(turn.timer))
    finally:
        turn.close()
