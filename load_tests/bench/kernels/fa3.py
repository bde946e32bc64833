"""FlashAttention-3 as vLLM ships it: the library by itself, without vLLM.

`_vllm_fa3_C.abi3.so` lies in the folder `vllm_flash_attn` of vLLM's wheel. Operators and arguments:
https://github.com/vllm-project/flash-attention, hopper/flash_api_torch_lib.cpp.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

_NO_WINDOW = -1
# what vLLM allows when steps are captured in graphs
_MAX_SPLITS = 32


def load(path: Path) -> None:
    """Register the library's operators.

    Raises:
        ValueError: it does not exist, or was built for another torch.
    """
    try:
        torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    except OSError as error:
        raise ValueError(f"cannot load {path} into torch {torch.__version__}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Fa3Plan:
    """Attention of one batch; called once per layer.

    Attributes:
        q: [T, heads, head_dim].
        query_starts: [B + 1] int32.
        context_lens: [B] int32.
        block_tables: [B, blocks] int32, or None for contiguous keys.
        metadata: what vLLM's scheduler kernel made for the step, for decoding.
    """

    q: Tensor
    query_starts: Tensor
    context_lens: Tensor
    max_query_len: int
    max_context_len: int
    block_tables: Tensor | None
    metadata: Tensor | None = None
    num_splits: int = 0

    def __call__(self, keys: Tensor, values: Tensor) -> Tensor:
        """Attend to keys [num_blocks, block_size, kv_heads, head_dim], or [T, kv_heads, ...]."""
        is_paged = self.block_tables is not None
        cu_keys = None if is_paged else self.query_starts
        used = self.context_lens if is_paged else None
        scale = self.q.shape[-1] ** -0.5
        out: Tensor = torch.ops._vllm_fa3_C.fwd(
            self.q, keys, values, None, None, None, None, self.query_starts, cu_keys, None, None,
            used, self.max_query_len, self.max_context_len, self.block_tables, None, None, None,
            None, None, None, None, None, scale, True, _NO_WINDOW, _NO_WINDOW, 0.0, True,
            self.metadata, self.num_splits, None, 0, None, 1, 0, None,
        )[0]  # fmt: skip
        return out


def plan_decode(
    q: Tensor, block_tables: Tensor, context_lens: Tensor, num_kv_heads: int, block_size: int
) -> Fa3Plan:
    """Plan one query token per sequence."""
    batch, num_heads, head_dim = q.shape
    max_context_len = int(context_lens.max())
    query_starts = torch.arange(batch + 1, device=q.device, dtype=torch.int32)
    metadata = torch.ops._vllm_fa3_C.get_scheduler_metadata(
        batch, 1, max_context_len, num_heads, num_kv_heads, head_dim, head_dim, q.dtype,
        context_lens, query_starts, None, None, None, None, block_size, 0, True, _NO_WINDOW,
        _NO_WINDOW, False, _MAX_SPLITS, None, 0,
    )  # fmt: skip
    return Fa3Plan(
        q=q,
        query_starts=query_starts,
        context_lens=context_lens,
        max_query_len=1,
        max_context_len=max_context_len,
        block_tables=block_tables,
        metadata=metadata,
        num_splits=_MAX_SPLITS,
    )


def plan_prefill(q: Tensor, block_tables: Tensor | None, context_len: int) -> Fa3Plan:
    """Plan the last T tokens of a prompt, causal; without block tables, all of them."""
    length = q.shape[0]
    bounds = torch.tensor([0, length], device=q.device, dtype=torch.int32)
    return Fa3Plan(
        q=q,
        query_starts=bounds,
        context_lens=torch.tensor([context_len], device=q.device, dtype=torch.int32),
        max_query_len=length,
        max_context_len=context_len,
        block_tables=block_tables,
    )
