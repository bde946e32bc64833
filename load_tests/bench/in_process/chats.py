"""Command `chats`: what the second level of the prefix cache gains for chats, and what it costs.

Chats take turns; between two turns of one chat all others have theirs, so that a KV cache that is
smaller than all chats together has lost a chat's prefix when its next turn comes. The same chats
run with a KV cache for all of them (`unbounded`), with a small one (`off`) and with a small one
whose lost blocks stay in the swap space (`on`). Then prompts that share nothing run with the two
small ones by turns.
"""

import argparse
import time
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import numpy as np

from engine.config import Device, EngineConfig
from engine.executor.inline import InlineExecutor
from engine.integers import div_ceil
from engine.types import StepOutput
from engine.worker.worker import load_worker
from load_tests import machine, report
from load_tests.bench.in_process.arena import swap_arena
from load_tests.local_engine import LocalEngine, greedy, local_config
from load_tests.model_folders import model_folder
from load_tests.options import add_model, at_least, positive

EXAMPLE = "python -m load_tests chats --model llama3-8b --device cuda"

_COLUMNS = ("KV cache", "blocks", "cached", "first token\np50 ms", "p99 ms", "tok/s")
_REPEATS = 3
_BLOCK_SIZE = 16
# what a request has: the tokens before it, its own, and how many the answer has
_Ask = tuple[list[int], list[int], int]


@dataclass(slots=True)
class ServedTurns:
    """What came of the turns of one run.

    Attributes:
        ttft_s: of each turn, from the request to its first token.
        cached_tokens, prompt_tokens, output_tokens: of all turns.
        seconds: from the first request to the last token.
    """

    ttft_s: list[float] = field(default_factory=list)
    cached_tokens: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0

    @property
    def cached_share(self) -> float:
        """Share of the prompts' tokens that were found in the prefix cache."""
        return self.cached_tokens / self.prompt_tokens

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second."""
        return self.output_tokens / self.seconds


@dataclass(slots=True)
class _Turn:
    """A turn in flight; `history` belongs to its chat and grows by the answer."""

    history: list[int]
    sent_s: float
    num_left: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `chats`; the lengths are the means of the paper's ShareGPT."""
    add_model(parser)
    parser.add_argument("--chats", type=at_least(1), default=32, help="that are open")
    parser.add_argument("--turns", type=at_least(2), default=8, help="of each chat")
    parser.add_argument("--user", type=at_least(1), default=161, help="tokens a turn adds")
    parser.add_argument("--answer", type=at_least(2), default=338, help="tokens of an answer")
    parser.add_argument("--in-flight", type=at_least(1), default=4, help="turns at a time")
    parser.add_argument(
        "--pool-share", type=positive, default=0.1, help="of all chats that the small KV cache has"
    )
    parser.add_argument("--private", action="store_true", help="without Ray's object store")
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, print and write."""
    files = report.start(args, "chats")
    with TemporaryDirectory() as name, ExitStack() as stack:
        sizes = _Sizes.of(args, model_folder(args.model, Path(name)))
        rows = {"unbounded": _chats(sizes.engine(sizes.all_blocks), args)}
        _say(rows)
        off = sizes.engine(sizes.few_blocks)
        config = sizes.config(sizes.few_blocks, sizes.all_blocks)
        arena = swap_arena(config, sizes.all_blocks, is_private=args.private)
        on = LocalEngine(
            config,
            InlineExecutor(load_worker(config, swap_view=stack.enter_context(arena)), 2),
        )
        for name, engine in (("off", off), ("on", on)):
            rows[name] = _turns(engine, args)
            _say(rows)
        costs = _without_hits(off, on, args)
        off.close()
        on.close()
    few = {"unbounded": sizes.all_blocks}
    report.print_table(
        f"{machine.name()}: {args.chats} chats of {args.turns} turns, {args.in_flight} in flight",
        _COLUMNS,
        [(name, str(few.get(name, sizes.few_blocks)), *_cells(row)) for name, row in rows.items()],
    )
    figures = {
        "cached share beside unbounded": rows["on"].cached_share / rows["unbounded"].cached_share,
        "first token p50 beside off": median(rows["on"].ttft_s) / median(rows["off"].ttft_s),
        "tok/s without hits beside off": costs,
    }
    for what, figure in figures.items():
        print(f"{what}: {figure:.3f}")
    files.finish(
        {"model": args.model, **figures, "runs": {n: asdict(row) for n, row in rows.items()}},
        ", ".join(f"{what} {figure:.2f}" for what, figure in figures.items()),
    )
    return 0


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The model, and the blocks of the longest chat, and of a KV cache for all or for a few."""

    folder: Path
    device: Device
    chat_blocks: int
    all_blocks: int
    few_blocks: int

    @classmethod
    def of(cls, args: argparse.Namespace, folder: Path) -> "_Sizes":
        chat_blocks = div_ceil(args.turns * (args.user + args.answer), _BLOCK_SIZE)
        longest = div_ceil(3 * chat_blocks, 2)
        few = max(round(args.pool_share * args.chats * chat_blocks), args.in_flight * longest)
        # a fifth more than the mean of what is drawn
        return cls(folder, args.device, longest, 6 * args.chats * chat_blocks // 5 + longest, few)

    def config(self, num_blocks: int, num_swap_blocks: int = 0) -> EngineConfig:
        config = local_config(
            self.folder,
            self.device,
            load_format="dummy",
            num_blocks=num_blocks,
            max_num_seqs=16,
            max_num_batched_tokens=2048,
            max_model_len=self.chat_blocks * _BLOCK_SIZE,
            prefix_cache=True,
        )
        return config.with_options(swap_bytes=num_swap_blocks * config.block_bytes)

    def engine(self, num_blocks: int) -> LocalEngine:
        return LocalEngine(self.config(num_blocks))


def _cells(turns: ServedTurns) -> tuple[str, ...]:
    p99_s = quantiles(turns.ttft_s, n=100)[-1]
    times = (f"{1e3 * median(turns.ttft_s):.1f}", f"{1e3 * p99_s:.1f}")
    return f"{turns.cached_share:.1%}", *times, f"{turns.tokens_per_s:.0f}"


def _say(rows: dict[str, ServedTurns]) -> None:
    """Print the newest row: a run takes minutes."""
    *_, (name, row) = rows.items()
    print(name, "cached {}, first token p50 {} ms, p99 {} ms, {} tok/s".format(*_cells(row)))


def _chats(engine: LocalEngine, args: argparse.Namespace) -> ServedTurns:
    turns = _turns(engine, args)
    engine.close()
    return turns


def _turns(engine: LocalEngine, args: argparse.Namespace) -> ServedTurns:
    """Serve every chat's first turn, then every second turn, and so on.

    Lengths differ by up to a half, so that turns in flight don't end together.
    """
    rng = np.random.default_rng(0)
    histories: list[list[int]] = [[] for _ in range(args.chats)]
    asks = [
        (history, rng.integers(0, 200, _about(args.user, rng)).tolist(), _about(args.answer, rng))
        for _ in range(args.turns)
        for history in histories
    ]
    _serve(engine, [([], rng.integers(0, 200, 64).tolist(), 8)], args.in_flight)
    return _serve(engine, asks, args.in_flight)


def _about(length: int, rng: np.random.Generator) -> int:
    return int(rng.integers(length // 2, 3 * length // 2)) if length > 1 else 1


def _without_hits(off: LocalEngine, on: LocalEngine, args: argparse.Namespace) -> float:
    """Run prompts that share nothing by turns; return the median ratio of tokens per second."""
    rng = np.random.default_rng(1)
    length = args.turns * (args.user + args.answer) // 2
    count = max(2 * args.in_flight, args.chats // 2)
    ratios = []
    for _ in range(_REPEATS):
        speeds = [
            _serve(
                engine,
                [([], rng.integers(0, 200, length).tolist(), args.answer) for _ in range(count)],
                args.in_flight,
            ).tokens_per_s
            for engine in (off, on)
        ]
        ratios.append(speeds[1] / speeds[0])
    print("without hits, on beside off:", ", ".join(f"{ratio:.3f}" for ratio in ratios))
    return median(ratios)


def _serve(engine: LocalEngine, asks: Iterable[_Ask], in_flight: int) -> ServedTurns:
    """Keep so many turns in flight, in their order, until all have been answered."""
    served, running, waiting = ServedTurns(), dict[int, _Turn](), deque(asks)
    start_s = time.perf_counter()
    while waiting or running:
        while waiting and len(running) < in_flight:
            history, words, answer_len = waiting.popleft()
            history += words
            running[engine.next_id] = _Turn(history, time.perf_counter(), answer_len)
            engine.add(list(history), greedy(answer_len))
            served.prompt_tokens += len(history)
        output = engine.step()
        if output is not None:
            _take(output, running, served)
    served.seconds = time.perf_counter() - start_s
    return served


def _take(output: StepOutput, running: dict[int, _Turn], served: ServedTurns) -> None:
    now_s = time.perf_counter()
    served.cached_tokens += sum(output.cached_tokens)
    for request_id, token in zip(output.request_ids, output.tokens, strict=True):
        turn = running[request_id]
        if turn.sent_s:
            served.ttft_s.append(now_s - turn.sent_s)
            turn.sent_s = 0.0
        turn.history.append(token)
        turn.num_left -= 1
        served.output_tokens += 1
        if not turn.num_left:
            del running[request_id]
