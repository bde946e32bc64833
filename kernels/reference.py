"""The backend in plain torch: the oracle of all kernels and the fallback of every device.

Any float dtype, any block size, any number of query heads per key head. Statistics, rotations and
softmax are in float32.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from kernels import sampling
from kernels.backend import Activation, BlockChecksum, Layers, Linear
from kernels.batch import BatchColumns, BatchLayout, GatheredBatch, Sampled, SamplingColumns
from kernels.checksum import Checksum
from kernels.experts import ExpertWeights, Routing
from kernels.integers import div_ceil
from kernels.linears import DenseLinear, GatedLinear, WideLinear
from kernels.looped_experts import LoopedExperts

# keys gathered at once for decoding rows: bounds the scratch memory of long contexts
_MAX_GATHERED_TOKENS = 1 << 16


class ReferenceBackend:
    """`kernels.backend.KernelBackend` in plain torch; contracts are documented there."""

    is_chunked_alike = False

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device = device
        self.dtype = dtype

    def make_linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """Keep the weight as it is."""
        return DenseLinear(weight, bias)

    def make_head(self, weight: Tensor) -> Linear:
        """Widen the weight, too."""
        return WideLinear(self.make_linear(weight.float(), None))

    def make_gated_linear(
        self, weight: Tensor, bias: Tensor | None = None, activation: Activation = "silu"
    ) -> Linear:
        """Multiply, then gate, both by operations of this backend."""
        gate = {"silu": self.silu_mul, "gelu": self.gelu_mul}[activation]
        return GatedLinear(self.make_linear(weight, bias), gate)

    def make_experts(self, weights: ExpertWeights, routing: Routing) -> Linear:
        """Run the experts of a step one after the other."""
        return LoopedExperts(self, weights, routing)

    def append_blocks(self, block_tables: Tensor, places: Tensor, blocks: Tensor) -> None:
        """Write through a flat view."""
        block_tables.view(-1).index_copy_(0, places, blocks.int())

    def gather_batch(
        self, columns: BatchColumns, block_tables: Tensor, last_tokens: Tensor, block_size: int
    ) -> tuple[Tensor, GatheredBatch]:
        """Gather column by column."""
        num_prompt_tokens = len(columns.prompt_tokens)
        decoding = columns.rows[: len(columns.block_indices) - num_prompt_tokens]
        last = last_tokens.index_select(0, decoding)
        blocks = block_tables.view(-1).index_select(0, columns.block_indices)
        gathered = GatheredBatch(
            # 64 bits wide, since a pool may have more than 2**31 slots
            slot_mapping=columns.block_offsets.add(blocks, alpha=block_size),
            block_tables=block_tables.index_select(0, columns.rows),
            context_lens=columns.context_lens.int(),
            query_starts=columns.starts.int(),
        )
        return torch.cat((last, columns.prompt_tokens)), gathered

    def embed(self, tokens: Tensor, weight: Tensor) -> Tensor:
        """Look up rows of `weight`."""
        return functional.embedding(tokens, weight)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Normalise in float32 and round once."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
        return (wide * scale * weight.float()).to(x.dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add to `residual` in place, round, normalise."""
        residual.add_(x)
        return self.rms_norm(residual, weight, eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Normalise in float32 and round once."""
        wide = functional.layer_norm(x.float(), x.shape[1:], weight.float(), bias.float(), eps)
        return wide.to(x.dtype)

    def add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        """Add to `residual` in place, round, normalise."""
        residual.add_(x)
        return self.layer_norm(residual, weight, bias, eps)

    def rope_write(
        self, qkv: Tensor, cos_sin: Tensor, kv_layer: Tensor, layout: BatchLayout
    ) -> Tensor:
        """Rotate in float32; tokens with slot -1 are not written."""
        num_kv_heads, head_dim = kv_layer.shape[2], kv_layer.shape[4]
        heads = qkv.view(qkv.shape[0], -1, head_dim)
        turned, values = heads[:, :-num_kv_heads], heads[:, -num_kv_heads:]
        rotated = _rotate(turned.float(), cos_sin[layout.positions]).to(qkv.dtype)
        _write(kv_layer, rotated[:, -num_kv_heads:], values, layout.slot_mapping)
        return rotated[:, :-num_kv_heads].contiguous()

    def norm_rope_write(
        self,
        qkv: Tensor,
        gains: Tensor,
        eps: float,
        cos_sin: Tensor | None,
        kv_layer: Tensor,
        layout: BatchLayout,
        means: Tensor | None = None,
    ) -> Tensor:
        """Normalise and rotate in float32, round once; tokens with slot -1 are not written."""
        num_kv_heads, head_dim = kv_layer.shape[2], kv_layer.shape[4]
        heads = qkv.view(qkv.shape[0], -1, head_dim)
        wide, values = heads[:, :-num_kv_heads].float(), heads[:, -num_kv_heads:]
        if means is None:
            squares = wide.square().mean(dim=-1, keepdim=True)
        else:
            counts = torch.tensor([len(gains) - num_kv_heads, num_kv_heads], device=qkv.device)
            squares = means.repeat_interleave(counts, dim=1)[:, :, None]
        turned = wide * torch.rsqrt(squares + eps) * gains.float()
        if cos_sin is not None:
            turned = _rotate(turned, cos_sin[layout.positions])
        turned = turned.to(qkv.dtype)
        _write(kv_layer, turned[:, -num_kv_heads:], values, layout.slot_mapping)
        return turned[:, :-num_kv_heads].contiguous()

    def mean_squares(self, x: Tensor, first: int, second: int) -> Tensor:
        """Sum in float32."""
        squares = x[:, : first + second].float().square()
        return torch.stack((squares[:, :first].mean(1), squares[:, first:].mean(1)), dim=1)

    def prepare(
        self, layout: BatchLayout, _kv: Tensor, _windows: Sequence[int] = (0,)
    ) -> BatchLayout:
        """Return the layout as it is: the reference needs no plan."""
        return layout

    def run_layers(self, layers: Layers, x: Tensor, kv: Tensor, layout: BatchLayout) -> Tensor:
        """Call them."""
        return layers(x, kv, layout)

    def kv_write(self, qkv: Tensor, kv_layer: Tensor, layout: BatchLayout) -> Tensor:
        """Write as it is; tokens with slot -1 are not written."""
        num_kv_heads, head_dim = kv_layer.shape[2], kv_layer.shape[4]
        heads = qkv.view(qkv.shape[0], -1, head_dim)
        keys, values = heads[:, -2 * num_kv_heads :].chunk(2, dim=1)
        _write(kv_layer, keys, values, layout.slot_mapping)
        return heads[:, : -2 * num_kv_heads].contiguous()

    def attention(
        self,
        q: Tensor,
        kv_layer: Tensor,
        layout: BatchLayout,
        scale: float,
        *,
        softcap: float = 0.0,
        window: int = 0,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Gather the blocks of each sequence; decoding rows together, prefill one by one."""
        starts = layout.query_starts.tolist()
        context_lens = layout.context_lens.tolist()
        out = torch.empty_like(q)
        for rows in _row_groups(context_lens, layout.num_decodes):
            tokens = slice(starts[rows.start], starts[rows.stop])
            if tokens.start == tokens.stop:
                continue
            queries = q[tokens].view(rows.stop - rows.start, -1, *q.shape[1:])
            keys, values = _gather(kv_layer, layout.block_tables[rows], max(context_lens[rows]))
            ends = layout.context_lens[rows]
            attended = _attend(queries, keys, values, ends, scale, softcap, window, sinks)
            out[tokens] = attended.flatten(0, 1)
        return out.flatten(1)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up for gate_up [T, 2 * intermediate] -> [T, intermediate]."""
        gate, up = gate_up.float().chunk(2, dim=-1)
        return (functional.silu(gate) * up).to(gate_up.dtype)

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        """gelu(gate) * up for gate_up [T, 2 * intermediate] -> [T, intermediate]; see `gelu`."""
        gate, up = gate_up.float().chunk(2, dim=-1)
        return (functional.gelu(gate, approximate="tanh") * up).to(gate_up.dtype)

    def softcap(self, logits: Tensor, cap: float) -> Tensor:
        """Compute in float32 and round once."""
        return logits.copy_(cap * torch.tanh(logits.float() / cap))

    def relu(self, x: Tensor) -> Tensor:
        """Clamp at 0."""
        return functional.relu(x)

    def gelu(self, x: Tensor) -> Tensor:
        """Compute in float32 and round once."""
        return functional.gelu(x.float(), approximate="tanh").to(x.dtype)

    def copy_blocks(self, kv: Tensor, sources: Tensor, destinations: Tensor) -> None:
        """Copy through one gathered tensor, so a source is read before any block is written."""
        kv[destinations] = kv[sources]

    def make_checksum(self, kv: Tensor) -> BlockChecksum:
        """Multiply and add."""
        return Checksum(kv)

    def mask_tokens(self, scores: Tensor, masks: Tensor, places: Tensor | None = None) -> None:
        """Unpack the bits; see `kernels.sampling`."""
        sampling.mask_tokens(scores, masks, places)

    def sample(self, logits: Tensor, columns: SamplingColumns) -> Sampled:
        """Choose tokens; see `kernels.sampling`."""
        return sampling.sample(logits, columns)

    def sample_masked(
        self, logits: Tensor, columns: SamplingColumns, masks: Tensor, places: Tensor
    ) -> Sampled:
        """Sample twice: what is ruled out may hide that the logits are no numbers."""
        greedy = replace(columns, all_greedy=True, any_filter=False)
        is_broken = self.sample(logits, greedy).tokens == sampling.BROKEN
        scores = logits.float()
        self.mask_tokens(scores, masks, places)
        tokens = self.sample(scores, columns).tokens
        # where nothing is left, the largest is no number either
        tokens = tokens.masked_fill(tokens == sampling.BROKEN, sampling.NONE_LEFT)
        return Sampled(tokens=tokens.masked_fill(is_broken, sampling.BROKEN))

    def report_logprobs(self, tokens: Tensor, logits: Tensor, num_logprobs: int) -> Sampled:
        """See `kernels.sampling.with_logprobs`."""
        return sampling.with_logprobs(tokens, logits, num_logprobs)


def _rotate(heads: Tensor, cos_sin: Tensor) -> Tensor:
    """Rotate heads [T, H, D] by cos_sin [T, D], all float32."""
    cos, sin = cos_sin[:, None].chunk(2, dim=-1)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _write(kv_layer: Tensor, keys: Tensor, values: Tensor, slot_mapping: Tensor) -> None:
    """Put keys and values [T, kv_heads, D] into their slots; -1 is skipped."""
    block_size = kv_layer.shape[3]
    written = slot_mapping >= 0
    blocks, block_offsets = slot_mapping[written] // block_size, slot_mapping[written] % block_size
    kv_layer[blocks, 0, :, block_offsets] = keys[written]
    kv_layer[blocks, 1, :, block_offsets] = values[written]


def _row_groups(context_lens: list[int], num_decodes: int) -> Iterator[slice]:
    """Rows to attend together: decoding rows up to a bound of keys, then each chunk by itself."""
    start, longest = 0, 0
    for row, context_len in enumerate(context_lens):
        longest = max(longest, context_len)
        full = (row + 1 - start) * longest > _MAX_GATHERED_TOKENS
        if row > start and (full or row >= num_decodes):
            yield slice(start, row)
            start, longest = row, context_len
    if context_lens:
        yield slice(start, len(context_lens))


def _gather(kv_layer: Tensor, block_tables: Tensor, max_context_len: int) -> tuple[Tensor, Tensor]:
    """Keys and values [R, kv_heads, tokens, D] float32 of whole blocks, by position."""
    block_size = kv_layer.shape[3]
    num_blocks = div_ceil(max_context_len, block_size)
    # [R, num_blocks, 2, heads, block_size, D] -> [2, R, heads, num_blocks * block_size, D]
    blocks = kv_layer[block_tables[:, :num_blocks].long()].float()
    keys, values = blocks.permute(2, 0, 3, 1, 4, 5).flatten(3, 4)
    return keys, values


def _attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    context_lens: Tensor,
    scale: float,
    softcap: float,
    window: int,
    sinks: Tensor | None,
) -> Tensor:
    """Causal attention of q [R, n, H, D], the last n tokens of each context -> same shape."""
    num_rows, num_new, num_heads, head_dim = q.shape
    num_kv_heads, num_tokens = keys.shape[1:3]
    # [R, n, H, D] -> [R, kv_heads, group, n, D]
    grouped = q.float().view(num_rows, num_new, num_kv_heads, -1, head_dim).permute(0, 2, 3, 1, 4)
    ages = torch.arange(num_new - 1, -1, -1, device=q.device)
    visible = (context_lens[:, None] - ages)[:, None, None, :, None]
    places = torch.arange(num_tokens, device=q.device)
    hidden = places >= visible
    # what no token of a row sees may hold anything, and 0 * NaN is NaN
    unused = places >= context_lens[:, None]
    if window:
        hidden |= places < visible - window
        unused |= places < context_lens[:, None] - (num_new - 1) - window
    scores = (grouped @ keys[:, :, None].transpose(-1, -2)) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        sink = sinks.float().view(num_kv_heads, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, sink), dim=-1)
    weights = scores.softmax(dim=-1)[..., :num_tokens]
    safe = values.masked_fill(unused[:, None, :, None], 0.0)
    attended = (weights @ safe[:, :, None]).permute(0, 3, 1, 2, 4)
    return attended.reshape(num_rows, num_new, num_heads, head_dim).to(q.dtype)
