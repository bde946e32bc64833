"""Chooses the experts of each token: router, scores and the best of them in one kernel.

Programs share out the columns of the router, and the last one to arrive at a tile of tokens adds
the parts in order and chooses. So a row gets the same bits in every batch, and logits are never
rounded. Twin: `kernels.looped_experts.choose_experts`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.experts import Routing
from kernels.triton.launch import are_few, let_next_start, overlap, wait_for_inputs

# columns of a program: part of the bits
_PART_COLUMNS = 256
_COLUMNS = 64
# tokens of a tile: part of the bits, too, as sums over experts depend on the threads of a tile
_ROWS = 16
# of one launch: bounds the memory of partial sums, and the number of counters
_SLAB_ROWS = 4096


@triton.jit
def _part_of_logits(
    x,
    router,
    rows,
    experts,
    start,
    num_columns,
    EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PART_COLUMNS: tl.constexpr,
):
    """Sums over the columns of a part: [EXPERTS, ROWS] float32."""
    sums = tl.zeros([EXPERTS, ROWS], tl.float32)
    for first in range(start, start + PART_COLUMNS, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        is_column = (columns < num_columns)[None, :]
        weights = tl.load(
            router + experts[:, None] * num_columns + columns[None, :], is_column, other=0.0
        )
        inputs = tl.load(x + rows[:, None] * num_columns + columns[None, :], is_column, other=0.0)
        sums = tl.dot(weights, inputs.T, sums, input_precision="ieee")
    return sums


@triton.jit
def _choose(
    ids,
    weights,
    logits,
    choice_bias,
    experts,
    rows,
    num_rows,
    num_experts,
    scale,
    TOP_K: tl.constexpr,
    SLOTS: tl.constexpr,
    ROWS: tl.constexpr,
    IS_SIGMOID: tl.constexpr,
    RENORMALISES: tl.constexpr,
    HAS_CHOICE_BIAS: tl.constexpr,
):
    """Store the best of logits [ROWS, EXPERTS], ids and weights."""
    worst = float("-inf")
    # what is not finite must not lead to an id that no expert has
    logits = tl.where(tl.abs(logits) < -worst, logits, 0.0)
    is_expert = (experts < num_experts)[None, :]
    logits = tl.where(is_expert, logits, worst)
    if IS_SIGMOID:
        scores = tl.sigmoid(logits)
    else:
        scores = tl.exp(logits - tl.max(logits, 1)[:, None])
        scores = scores / tl.sum(scores, 1)[:, None]
    ranks = scores if IS_SIGMOID or HAS_CHOICE_BIAS else logits
    if HAS_CHOICE_BIAS:
        bias = tl.load(choice_bias + experts, experts < num_experts, other=0.0)
        ranks = ranks + bias[None, :]
    ranks = tl.where(is_expert, ranks, worst)
    slots = tl.arange(0, SLOTS)[None, :]
    chosen = tl.zeros([ROWS, SLOTS], tl.int32)
    shares = tl.zeros([ROWS, SLOTS], tl.float32)
    for slot in tl.static_range(TOP_K):
        best = tl.argmax(ranks, 1)
        is_best = experts[None, :] == best[:, None]
        share = tl.sum(tl.where(is_best, scores, 0.0), 1)
        chosen = tl.where(slots == slot, best[:, None], chosen)
        shares = tl.where(slots == slot, share[:, None], shares)
        ranks = tl.where(is_best, worst, ranks)
    if RENORMALISES:
        shares = shares / (tl.sum(shares, 1) + 1e-20)[:, None]
    is_kept = (slots < TOP_K) & (rows < num_rows)[:, None]
    places = rows[:, None] * TOP_K + slots
    tl.store(ids + places, chosen, is_kept)
    tl.store(weights + places, shares * scale, is_kept)


@triton.jit(do_not_specialize=["num_rows"])
def _route_kernel(
    ids,
    weights,
    x,
    router,
    router_bias,
    choice_bias,
    partial_sums,
    arrivals,
    num_rows,
    num_columns,
    num_experts,
    scale,
    TOP_K: tl.constexpr,
    SLOTS: tl.constexpr,
    EXPERTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PART_COLUMNS: tl.constexpr,
    IS_SIGMOID: tl.constexpr,
    RENORMALISES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_CHOICE_BIAS: tl.constexpr,
    HAS_FEW_ROWS: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    part, num_parts = tl.program_id(0), tl.num_programs(0)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    experts = tl.arange(0, EXPERTS)
    # what lies beyond the end repeats the last one; its results are not stored
    held_rows = tl.minimum(rows, num_rows - 1).to(tl.int64)
    held_experts = tl.minimum(experts, num_experts - 1)
    wait_for_inputs(OVERLAPPED)
    let_next_start(OVERLAPPED, HAS_FEW_ROWS)
    start = part * PART_COLUMNS
    sums = _part_of_logits(
        x, router, held_rows, held_experts, start, num_columns, EXPERTS, ROWS, COLUMNS, PART_COLUMNS
    )
    tile_size = EXPERTS * ROWS
    tile = partial_sums + tl.program_id(1).to(tl.int64) * num_parts * tile_size
    # by tokens, so that those who add up have the experts of a token in one warp
    local_rows = tl.arange(0, ROWS)
    tl.store(tile + part * tile_size + local_rows[None, :] * EXPERTS + experts[:, None], sums)
    tl.debug_barrier()
    arrival = arrivals + tl.program_id(1)
    if tl.atomic_add(arrival, 1, sem="acq_rel", scope="gpu") == num_parts - 1:
        tl.store(arrival, 0)
        places = local_rows[:, None] * EXPERTS + experts[None, :]
        logits = tl.zeros([ROWS, EXPERTS], tl.float32)
        for index in range(num_parts):
            # written by other multiprocessors, so not to be read through this one's cache
            logits += tl.load(tile + index * tile_size + places, cache_modifier=".cg")
        if HAS_BIAS:
            logits += tl.load(router_bias + held_experts).to(tl.float32)[None, :]
        _choose(
            ids,
            weights,
            logits,
            choice_bias,
            experts,
            rows,
            num_rows,
            num_experts,
            scale,
            TOP_K,
            SLOTS,
            ROWS,
            IS_SIGMOID,
            RENORMALISES,
            HAS_CHOICE_BIAS,
        )


class TritonRouter:
    """The router of one layer; experts in groups are chosen in torch."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        choice_bias: Tensor | None,
        routing: Routing,
    ) -> None:
        """Take a weight [experts, hidden], contiguous; see `kernels.experts.ExpertWeights`."""
        assert weight.is_contiguous()
        assert routing.num_groups == 1
        self._weight = weight
        self._bias = bias
        self._choice_bias = choice_bias
        self._routing = routing
        self._num_parts = triton.cdiv(weight.shape[1], _PART_COLUMNS)
        # zero between launches; a tile of a launch has one
        num_tiles = triton.cdiv(_SLAB_ROWS, _ROWS)
        self._arrivals = torch.zeros(num_tiles, dtype=torch.int32, device=weight.device)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Choose for tokens [T, hidden] -> ids [T, top_k] int32, weights [T, top_k] float32."""
        assert x.is_contiguous()
        shape = len(x), self._routing.top_k
        ids = torch.empty(shape, dtype=torch.int32, device=x.device)
        weights = torch.empty(shape, dtype=torch.float32, device=x.device)
        for slab in range(0, len(x), _SLAB_ROWS):
            rows = slice(slab, slab + _SLAB_ROWS)
            self._launch(ids[rows], weights[rows], x[rows])
        return ids, weights

    def _launch(self, ids: Tensor, weights: Tensor, x: Tensor) -> None:
        num_rows, num_columns = x.shape
        num_experts, routing = len(self._weight), self._routing
        # a matrix instruction takes 16 rows at least
        padded = max(triton.next_power_of_2(num_experts), 16)
        num_tiles = triton.cdiv(num_rows, _ROWS)
        num_sums = num_tiles * self._num_parts * padded * _ROWS
        _route_kernel[self._num_parts, num_tiles](
            ids,
            weights,
            x,
            self._weight,
            self._bias,
            self._choice_bias,
            x.new_empty(num_sums, dtype=torch.float32),
            self._arrivals,
            num_rows,
            num_columns,
            num_experts,
            routing.scale,
            TOP_K=routing.top_k,
            SLOTS=triton.next_power_of_2(routing.top_k),
            EXPERTS=padded,
            ROWS=_ROWS,
            COLUMNS=_COLUMNS,
            PART_COLUMNS=_PART_COLUMNS,
            IS_SIGMOID=routing.score == "sigmoid",
            RENORMALISES=routing.renormalises,
            HAS_BIAS=self._bias is not None,
            HAS_CHOICE_BIAS=self._choice_bias is not None,
            HAS_FEW_ROWS=are_few(num_rows),
            num_warps=4 if padded <= 256 else 8,
            **overlap(x.device),
        )
