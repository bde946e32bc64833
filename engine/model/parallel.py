"""Tensor parallelism: ranks hold shares of each matrix and sum or join their results.

The ranks of a gang form one group, for the life of the gang: `connect` makes it anew from a
rendezvous that no other gang has had.
"""

from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import parse_qs, unquote, urlsplit

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore
from torch.distributed import distributed_c10d

from engine.config import Device
from engine.errors import ConfigError
from kernels.row_sums import RowSums

_TRANSPORTS = {"cpu": "gloo", "cuda": "nccl"}
# until all have loaded, a rank may have to wait as long as the slowest reads its weights
_LOAD_TIMEOUT = timedelta(minutes=30)
# in a step a rank waits for another only as long as that is behind; a dead one is noticed at once
# by gloo, and by the scheduler for NCCL
STEP_TIMEOUT = timedelta(seconds=20)
# bytes for which NCCL takes different ways, each of which it prepares when it is needed first
_WARM_UP_BYTES = (1 << 10, 1 << 18, 1 << 24)


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """One of `size` ranks that run the same steps on shares of the model (arXiv:1909.08053).

    With one rank, nothing is sent.

    Attributes:
        row_sums: how few rows are summed; None has the transport sum all.
    """

    rank: int = 0
    size: int = 1
    row_sums: RowSums | None = None

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
        row_sums = self.row_sums_of(x, is_deterministic=is_deterministic)
        if row_sums is not None:
            return row_sums.sum_rows(x)
        if self.size > 2 and is_deterministic:
            # a ring sums the parts of x in an order that depends on the place in x; two parts have
            # one sum only
            parts = self._gather(x)
            x.zero_()
            for part in parts:
                x += part
        elif self.size > 1:
            dist.all_reduce(x)
        return x

    def row_sums_of(self, x: Tensor, *, is_deterministic: bool = False) -> RowSums | None:
        """What sums x in place of the transport (NCCL or gloo); None where the transport does."""
        sums = self.row_sums
        # in any number of rows the same way, as another may round elsewhere
        if sums is None or not (sums.fits(x) if is_deterministic else sums.is_fastest(x)):
            return None
        return sums

    def all_gather(self, x: Tensor) -> Tensor:
        """Join x [S, n] of all ranks along the last dimension -> [S, size * n]."""
        if self.size == 1:
            return x
        return torch.cat(self._gather(x), dim=1)

    def warm_up(self, device: torch.device) -> None:
        """Have the transport take the memory that it needs and make its connections."""
        for num_bytes in _WARM_UP_BYTES if self.size > 1 else ():
            self.all_reduce(torch.zeros(num_bytes // 4, device=device))
            self.all_gather(torch.zeros(1, num_bytes // (4 * self.size), device=device))

    def begin_steps(self, device: torch.device) -> None:
        """Wait until all ranks have loaded; from now on no rank waits longer than `STEP_TIMEOUT`.

        Collectives in CUDA graphs have no timeout: there the scheduler's deadline ends the ranks.
        """
        if self.size > 1:
            self.all_reduce(torch.zeros(1, device=device)).item()
            # torch 2.11 has no public name for it
            distributed_c10d._set_pg_timeout(STEP_TIMEOUT)

    def close(self) -> None:
        """Leave the group of ranks; the process may join another one."""
        if self.size > 1:
            dist.destroy_process_group()

    def _gather(self, x: Tensor) -> list[Tensor]:
        """The x of every rank."""
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x)
        return parts


def local_device(device: Device, rank: int, index: int | None = None) -> torch.device:
    """The device of a rank among those that this process sees; it becomes the current one.

    Args:
        index: of the device; None where ranks of one node take them in turn.

    Raises:
        ConfigError: if torch finds no such GPU.
    """
    if device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            "device 'cuda' is configured, but no GPU can be used here; set device to 'cpu', or see "
            "whether nvidia-smi and the installed torch find one"
        )
    num_seen = torch.cuda.device_count()
    if index is None:
        index = rank % num_seen
    if index >= num_seen:
        raise ConfigError(
            f"rank {rank} is to take GPU {index} of those that it sees, but torch finds "
            f"{num_seen}; see whether nvidia-smi lists the GPUs that Ray counts"
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def connect(rank: int, size: int, rendezvous: str | None, device: torch.device) -> TensorParallel:
    """Form a group with the other ranks; returns when all of them have come.

    Args:
        rendezvous: `file:///path` of a file that is not there yet, or `tcp://address:port/name` for
            ranks on several nodes, see `store_at`; unused by one rank.

    Raises:
        ConfigError: if there is no such rank, or no rendezvous for several.
    """
    if not 0 <= rank < size:
        raise ConfigError(f"rank {rank} is not in tensor_parallel_size={size}")
    parallel = TensorParallel(rank, size)
    if size > 1:
        if rendezvous is None:
            raise ConfigError(f"tensor_parallel_size={size} needs a rendezvous between the ranks")
        dist.init_process_group(
            _TRANSPORTS[device.type],
            store=store_at(rendezvous, size, _LOAD_TIMEOUT),
            rank=rank,
            world_size=size,
            timeout=_LOAD_TIMEOUT,
            device_id=device if device.type == "cuda" else None,
        )
        parallel.warm_up(device)
    return parallel


def store_at(rendezvous: str, size: int, timeout: timedelta) -> Store:
    """Open the store in which the ranks of one gang find each other's addresses.

    A TCP store is kept by the rank whose URL ends with `?listener=N`, a socket of its process that
    listens there. Names of all keys begin with the URL's path, which only ranks of this gang know.
    """
    url = urlsplit(rendezvous)
    if url.scheme == "file":
        return FileStore(unquote(url.path), size)
    listener = parse_qs(url.query).get("listener")
    assert url.hostname is not None
    assert url.port is not None
    store = TCPStore(
        url.hostname,
        url.port,
        size,
        is_master=listener is not None,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=int(listener[0]) if listener else None,
    )
    return PrefixStore(url.path, store)
