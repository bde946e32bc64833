"""Ranks as threads of one process: no processes to start, no sockets to wait for."""

from dataclasses import dataclass, field
from threading import Barrier

import torch
from torch import Tensor

from engine.model.parallel import TensorParallel

_TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class _Meeting:
    """Where ranks leave what the others take.

    Attributes:
        left: tensors by rank.
    """

    barrier: Barrier
    left: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ThreadRank(TensorParallel):
    """One of several ranks, each of which runs in a thread of its own."""

    meeting: _Meeting

    def all_reduce(self, x: Tensor, *, is_deterministic: bool = False) -> Tensor:
        return x.copy_(torch.stack(self._gather(x)).sum(0))

    def _gather(self, x: Tensor) -> list[Tensor]:
        self.meeting.left[self.rank] = x.clone()
        self.meeting.barrier.wait(_TIMEOUT_S)
        parts = [self.meeting.left[rank] for rank in range(self.size)]
        # nobody leaves the next tensor before all have taken this one
        self.meeting.barrier.wait(_TIMEOUT_S)
        return parts


def thread_ranks(size: int) -> list[ThreadRank]:
    """Make ranks that wait for each other in each collective."""
    meeting = _Meeting(barrier=Barrier(size))
    return [ThreadRank(rank=rank, size=size, meeting=meeting) for rank in range(size)]
