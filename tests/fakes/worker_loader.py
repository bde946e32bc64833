"""Loads workers with a runtime of one's own, and with models that break on purpose."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.model.loader import load_model
from engine.model.model import Model
from engine.model.parallel import TensorParallel, connect
from engine.worker.kv_pool import KVPool
from engine.worker.worker import Worker
from kernels.batch import BatchLayout
from kernels.runtime import HostRuntime, T
from kernels.select import select_backend

# a token after which the logits are broken, and the one whose logit is
POISON, BROKEN_LOGIT = 300, 5


@dataclass(frozen=True)
class BreakingModel:
    """A model whose logits hold a value that is no number after one token, and are sound again
    after the next one.
    """

    model: Model
    value: float = math.nan

    @property
    def num_kv_heads(self) -> int:
        return self.model.num_kv_heads

    @property
    def windows(self) -> tuple[int, ...]:
        return self.model.windows

    def hidden(self, tokens: Tensor, kv: Tensor, layout: BatchLayout) -> Tensor:
        """With one column more, which says whose logits are broken."""
        hidden = self.model.hidden(tokens, kv, layout)
        return torch.cat((hidden, (tokens == POISON)[:, None].to(hidden.dtype)), dim=1)

    def logits(self, hidden: Tensor, *, is_deterministic: bool = False) -> Tensor:
        sound = hidden[:, :-1].contiguous()
        logits = self.model.logits(sound, is_deterministic=is_deterministic)
        logits[hidden[:, -1] > 0, BROKEN_LOGIT] = self.value
        return logits


class Replayer(HostRuntime):
    """A CPU whose recordings are the work itself; counts them and their replays."""

    def __init__(self) -> None:
        super().__init__(captures=True)
        self.num_captures = 0
        self.num_replays = 0

    def capture(self, work: Callable[[], T]) -> Callable[[], T]:
        self.num_captures += 1
        # a batch of padding must be harmless
        work()

        def replay() -> T:
            self.num_replays += 1
            return work()

        return replay


class LateRuntime(HostRuntime):
    """Moves in happen when they are waited for, and not before."""

    moves_in_parts = True

    def move_in(
        self,
        host: Tensor,
        slots: list[int],
        kv: Tensor,
        blocks: list[int],
        after: Iterable[object] = (),
    ) -> list[object]:
        return [partial(super().move_in, host, slots, kv, blocks)]

    def wait_for(self, marks: Iterable[object]) -> None:
        for mark in marks:
            assert isinstance(mark, partial)
            mark()


def loader(
    runtime: HostRuntime, wrap: Callable[[Model], Model] = lambda model: model
) -> Callable[[EngineConfig], Worker]:
    """Loads workers of one rank on a CPU.

    Args:
        wrap: puts something around the model.
    """

    def load(config: EngineConfig) -> Worker:
        return _make(config, runtime, TensorParallel(), wrap)

    return load


def load_replaying_worker(config: EngineConfig, *, rank: int, rendezvous: str) -> Worker:
    """Like `engine.worker.worker.load_worker`, with steps that are replayed."""
    parallel = connect(rank, config.tensor_parallel_size, rendezvous, torch.device("cpu"))
    return _make(config, Replayer(), parallel, lambda model: model)


def _make(
    config: EngineConfig,
    runtime: HostRuntime,
    parallel: TensorParallel,
    wrap: Callable[[Model], Model],
) -> Worker:
    backend = select_backend("cpu", torch.float32, compiled=config.compiled_kernels)
    model = wrap(load_model(config, backend, parallel))
    pool = KVPool(config, backend, runtime, 0)
    return Worker(config, runtime, backend, parallel, model, pool)
