"""Chooses the experts of each token: router, scores and the best of them in one kernel.

A logit is the sum of parts of its columns, and never rounded. Where a step has few tokens, programs
share out the parts, and the last one to arrive at a tile of tokens adds them in order and chooses.
Where it has many, a program multiplies all parts of a tile itself: then the compiler starts each
product with the sum so far, whose last bits are others. So where bits count, parts are shared out
whatever the number of tokens. Twin: `kernels.looped_experts.choose_experts`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.experts import Routing
from kernels.triton.launch import let_next_start, overlap, wait_for_inputs

# Columns of a part at most, and bytes of the router in it: part of the bits. On an H200 parts of
# 128 and of 256 columns take us, for 128 experts: 6.0 and 6.0 at 1 token, 6.1 and 6.2 at 64, 8.9
# and 6.8 at 256, 11.8 and 12.5 at 2,048. Parts of 512 do not fit into shared memory.
_PART_COLUMNS = 256
_PART_BYTES = 64 << 10
# tokens of a tile: part of the bits, too, as sums over experts depend on the threads of a tile
_ROWS = 16
# tokens of a launch: bounds the memory of partial sums, and the number of counters
_SLAB_ROWS = 4096
# tokens up to which programs share out the parts of a sum without being asked to: 1 token takes 6.5
# us instead of 10.8 on an H200, 256 take 9.8 instead of 11.2, 512 12.3 instead of 11.0
_SHARED_ROWS = 256


@triton.jit
def _router_part(router, held_experts, part, num_columns, COLUMNS: tl.constexpr):
    """The router's columns of a part: [EXPERTS, COLUMNS]."""
    columns = part * COLUMNS + tl.arange(0, COLUMNS)
    places = router + held_experts[:, None] * num_columns + columns[None, :]
    return tl.load(places, (columns < num_columns)[None, :], other=0.0)


@triton.jit
def _inputs_part(x, held_rows, part, num_columns, COLUMNS: tl.constexpr):
    """The tokens' columns of a part: [COLUMNS, ROWS]."""
    columns = part * COLUMNS + tl.arange(0, COLUMNS)
    places = x + held_rows[:, None] * num_columns + columns[None, :]
    return tl.load(places, (columns < num_columns)[None, :], other=0.0).T


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
    top = tl.max(logits, 1)
    if IS_SIGMOID:
        scores = tl.sigmoid(logits)
        total = top
    else:
        scores = tl.exp(logits - top[:, None])
        total = tl.sum(scores, 1)
        scores = scores / total[:, None]
    ranks = scores if IS_SIGMOID or HAS_CHOICE_BIAS else logits
    if HAS_CHOICE_BIAS:
        bias = tl.load(choice_bias + experts, experts < num_experts, other=0.0)
        ranks = ranks + bias[None, :]
    ranks = tl.where(is_expert, ranks, worst)
    slots = tl.arange(0, SLOTS)[None, :]
    chosen = tl.zeros([ROWS, SLOTS], tl.int32)
    shares = tl.zeros([ROWS, SLOTS], tl.float32)
    for slot in tl.static_range(TOP_K):
        rank, best = tl.max(ranks, 1, return_indices=True)
        is_best = experts[None, :] == best[:, None]
        if HAS_CHOICE_BIAS:
            share = tl.sum(tl.where(is_best, scores, 0.0), 1)
        elif IS_SIGMOID:
            share = rank
        else:
            share = tl.exp(rank - top) / total
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
    NUM_PARTS: tl.constexpr,
    IS_SHARED: tl.constexpr,
    IS_SIGMOID: tl.constexpr,
    RENORMALISES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_CHOICE_BIAS: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    experts = tl.arange(0, EXPERTS)
    # what lies beyond the end repeats the last one; its results are not stored
    held_rows = tl.minimum(rows, num_rows - 1).to(tl.int64)
    held_experts = tl.minimum(experts, num_experts - 1)
    if IS_SHARED:
        part = tl.program_id(0)
        # the router is never written while a model runs, so its way from memory overlaps the wait
        weight = _router_part(router, held_experts, part, num_columns, COLUMNS)
        wait_for_inputs(OVERLAPPED)
        let_next_start(OVERLAPPED, True)
        inputs = _inputs_part(x, held_rows, part, num_columns, COLUMNS)
        sums = tl.dot(weight, inputs, input_precision="ieee")
    else:
        wait_for_inputs(OVERLAPPED)
        sums = tl.zeros([EXPERTS, ROWS], tl.float32)
        for part in range(NUM_PARTS):
            weight = _router_part(router, held_experts, part, num_columns, COLUMNS)
            inputs = _inputs_part(x, held_rows, part, num_columns, COLUMNS)
            # what the compiler makes of `sums += tl.dot(weight, inputs)`, too
            sums = tl.dot(weight, inputs, sums, input_precision="ieee")
    TILE_SIZE: tl.constexpr = EXPERTS * ROWS
    STORED: tl.constexpr = NUM_PARTS if IS_SHARED else 1
    tile = partial_sums + tl.program_id(1).to(tl.int64) * (STORED * TILE_SIZE)
    # by tokens, so that those who add up have the experts of a token in one warp
    local_rows = tl.arange(0, ROWS)
    stored = tile + tl.program_id(0) * TILE_SIZE
    tl.store(stored + local_rows[None, :] * EXPERTS + experts[:, None], sums)
    tl.debug_barrier()
    arrival = arrivals + tl.program_id(1)
    if tl.atomic_add(arrival, 1, sem="acq_rel", scope="gpu") == STORED - 1:
        tl.store(arrival, 0)
        places = local_rows[:, None] * EXPERTS + experts[None, :]
        logits = tl.zeros([ROWS, EXPERTS], tl.float32)
        # unrolled, so that the loads of all parts are on their way together
        for index in tl.static_range(STORED):
            # written by other multiprocessors, so not to be read through this one's cache
            logits += tl.load(tile + index * TILE_SIZE + places, cache_modifier=".cg")
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
        num_experts, num_columns = weight.shape
        # a matrix instruction takes 16 rows at least
        self._padded = max(triton.next_power_of_2(num_experts), 16)
        fitting = _PART_BYTES // (self._padded * weight.element_size())
        self._part_columns = min(_PART_COLUMNS, fitting)
        self._num_parts = triton.cdiv(num_columns, self._part_columns)
        # zero between launches; a tile of a launch has one
        num_tiles = triton.cdiv(_SLAB_ROWS, _ROWS)
        self._arrivals = torch.zeros(num_tiles, dtype=torch.int32, device=weight.device)

    def __call__(self, x: Tensor, *, is_deterministic: bool = False) -> tuple[Tensor, Tensor]:
        """Choose for tokens [T, hidden] -> ids [T, top_k] int32, weights [T, top_k] float32.

        Args:
            is_deterministic: see `kernels.backend.Linear`.
        """
        assert x.is_contiguous()
        shape = len(x), self._routing.top_k
        ids = torch.empty(shape, dtype=torch.int32, device=x.device)
        weights = torch.empty(shape, dtype=torch.float32, device=x.device)
        for slab in range(0, len(x), _SLAB_ROWS):
            rows = slice(slab, slab + _SLAB_ROWS)
            is_shared = is_deterministic or len(x) <= _SHARED_ROWS
            self._launch(ids[rows], weights[rows], x[rows], is_shared=is_shared)
        return ids, weights

    def _launch(self, ids: Tensor, weights: Tensor, x: Tensor, *, is_shared: bool) -> None:
        num_rows, num_columns = x.shape
        num_experts, routing = len(self._weight), self._routing
        num_tiles = triton.cdiv(num_rows, _ROWS)
        num_programs = self._num_parts if is_shared else 1
        num_sums = num_tiles * num_programs * self._padded * _ROWS
        _route_kernel[num_programs, num_tiles](
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
            EXPERTS=self._padded,
            ROWS=_ROWS,
            COLUMNS=self._part_columns,
            NUM_PARTS=self._num_parts,
            IS_SHARED=is_shared,
            IS_SIGMOID=routing.score == "sigmoid",
            RENORMALISES=routing.renormalises,
            HAS_BIAS=self._bias is not None,
            HAS_CHOICE_BIAS=self._choice_bias is not None,
            num_warps=8,
            **overlap(x.device),
        )
