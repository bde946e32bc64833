"""Buffers that all ranks of a node reach over NVLink, for sums of few rows."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from engine.config import EngineConfig
from engine.model.parallel import TensorParallel
from kernels.row_sums import RowSums

if TYPE_CHECKING:
    from kernels.triton.peers.peer_sum import PeerSum

logger = logging.getLogger(__name__)

# a row lives in registers
_MAX_WIDTH = 16384
# what torch's symmetric memory raises where devices or containers do not allow it
_REFUSALS = (RuntimeError, OSError, ImportError)
_ADVICE = (
    "; steps of few rows take longer. Ranks need whole GPUs of one node, each its own, and "
    "`nvidia-smi topo -p2p w` has to say OK for each pair; peer_memory: false takes this line away"
)


def with_peer_memory(
    parallel: TensorParallel, config: EngineConfig, device: torch.device, *, is_one_node: bool
) -> TensorParallel:
    """Have GPUs of one node sum few rows by their own kernels; all ranks do, or none.

    Where they cannot, NCCL goes on to sum everything, and one line of the log says why and what to
    do about it.
    """
    if parallel.size == 1 or device.type != "cuda":
        return parallel
    reason, advice = _reason_against(config, is_one_node=is_one_node), ""
    row_sums: RowSums | None = None
    if not reason:
        dtype: torch.dtype = getattr(torch, config.dtype)
        row_sums, reason = _tried(
            lambda: share_memory(parallel, config.model.hidden_size, dtype, device)
        )
        advice = _ADVICE if reason else ""
        # a rank that failed takes the others along
        is_shared = torch.tensor([row_sums is not None], dtype=torch.int32, device=device)
        dist.all_reduce(is_shared, dist.ReduceOp.MIN)
        if not is_shared.item():
            row_sums, reason = None, reason or "another rank cannot"
    if parallel.rank == 0 or advice:
        by = "peer_memory" if row_sums else "nccl"
        logger.info("row_sums by=%s reason=%s%s", by, reason or "-", advice)
    return replace(parallel, row_sums=row_sums)


def _reason_against(config: EngineConfig, *, is_one_node: bool) -> str:
    """Why memory is not even tried to share, the same on all ranks; empty for no reason."""
    if not config.peer_memory:
        return "peer_memory is off"
    if not is_one_node:
        return "the ranks may run on several nodes, see placement_strategy"
    if torch.version.hip is not None or not config.compiled_kernels:
        return "no kernels for it"
    width = config.model.hidden_size
    is_aligned = width * getattr(torch, config.dtype).itemsize % 16 == 0
    return "" if is_aligned and width <= _MAX_WIDTH else f"rows of {width} numbers"


def _tried(share: Callable[[], RowSums]) -> tuple[RowSums | None, str]:
    try:
        return share(), ""
    except _REFUSALS as error:
        first_line = str(error).splitlines()[0] if str(error) else ""
        return None, f"{type(error).__name__}: {first_line}"


def share_memory(
    parallel: TensorParallel, width: int, dtype: torch.dtype, device: torch.device
) -> "PeerSum":
    """Allocate a buffer on each rank and exchange where they are.

    Args:
        width: of the rows that will be summed.

    Raises:
        RuntimeError: where the GPUs or what the processes run in do not allow it.
    """
    import torch.distributed._symmetric_memory as symmetric

    from kernels.triton.peers.peer_sum import BufferLayout, PeerSum

    layout = BufferLayout(parallel.size, width, dtype)
    buffer: Tensor = symmetric.empty(layout.num_bytes, dtype=torch.uint8, device=device)
    everybody = dist.group.WORLD
    assert everybody is not None
    handle: Any = symmetric.rendezvous(buffer, everybody)
    buffer.zero_()
    torch.cuda.synchronize(device)
    # nobody writes into a buffer that is not zeroed yet
    dist.barrier()
    torch.cuda.synchronize(device)
    addresses = [int(address) for address in handle.buffer_ptrs]
    return PeerSum(parallel.rank, layout, addresses, device, owner=(buffer, handle))
