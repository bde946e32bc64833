"""Tensor parallelism: ranks hold shares of each matrix and sum or join their results."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from engine.config import Device
from engine.errors import ConfigError

_TRANSPORTS = {"cpu": "gloo", "cuda": "nccl"}


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """One of `size` ranks that run the same steps on shares of the model (arXiv:1909.08053).

    With one rank, nothing is sent.
    """

    rank: int = 0
    size: int = 1

    def share(self, count: int, what: str) -> int:
        """Part of `count` that one rank holds.

        Raises:
            ConfigError: if it does not divide.
        """
        if count % self.size:
            raise ConfigError(
                f"{what} ({count}) cannot be split over tensor_parallel_size={self.size} ranks; "
                "choose a divisor"
            )
        return count // self.size

    def span(self, count: int, what: str, *, num_heads: int | None = None) -> range:
        """Which of `count` rows this rank holds.

        Args:
            num_heads: key-value heads that the rows belong to. Where there are fewer of them than
                ranks, each is held by several ranks in a row: by those whose queries read it.

        Raises:
            ConfigError: if the rows do not divide.
        """
        if num_heads is None or num_heads >= self.size:
            share, place = self.share(count, what), self.rank
        else:
            share, place = count // num_heads, self.rank * num_heads // self.size
        return range(place * share, (place + 1) * share)

    def all_reduce(self, x: Tensor, *, is_deterministic: bool = False) -> Tensor:
        """Sum x over all ranks, IN PLACE, and return it.

        Args:
            is_deterministic: whether the bits of a row may not depend on the other rows.
        """
        if self.size > 2 and is_deterministic:
            # a ring sums the parts of x in an order that depends on the place in x; two parts have
            # one sum only
            parts = [torch.empty_like(x) for _ in range(self.size)]
            dist.all_gather(parts, x)
            x.zero_()
            for part in parts:
                x += part
        elif self.size > 1:
            dist.all_reduce(x)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """Join x [S, n] of all ranks along the last dimension -> [S, size * n]."""
        if self.size == 1:
            return x
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x)
        return torch.cat(parts, dim=1)

    def close(self) -> None:
        """Leave the group of ranks."""
        if self.size > 1:
            dist.destroy_process_group()


def local_device(device: Device, rank: int) -> torch.device:
    """The device of a rank among those that this process sees; it becomes the current one."""
    if device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("device 'cuda' is configured, but no GPU can be used here")
    index = rank % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def connect(rank: int, size: int, rendezvous: str | None, device: torch.device) -> TensorParallel:
    """Form a group with the other ranks; returns when all of them have come.

    Args:
        rendezvous: init method of torch.distributed, such as file:///path; unused by one rank.

    Raises:
        ConfigError: if there is no such rank, or no rendezvous for several.
    """
    if not 0 <= rank < size:
        raise ConfigError(f"rank {rank} is not in tensor_parallel_size={size}")
    if size > 1:
        if rendezvous is None:
            raise ConfigError(f"tensor_parallel_size={size} needs a rendezvous between the ranks")
        dist.init_process_group(
            _TRANSPORTS[device.type],
            init_method=rendezvous,
            rank=rank,
            world_size=size,
        )
    return TensorParallel(rank, size)
