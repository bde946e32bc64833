"""One layer's experts on an NVIDIA GPU: route, sort, multiply twice, add up."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.experts import ExpertWeights, Routing
from kernels.looped_experts import choose_experts
from kernels.triton.experts.combine import combine
from kernels.triton.experts.down import down_product
from kernels.triton.experts.gate_groups import in_groups
from kernels.triton.experts.gate_up import gate_up_product
from kernels.triton.experts.route import TritonRouter
from kernels.triton.experts.sort import SortedPairs, sort_pairs
from kernels.triton.linear.tiles import Tile
from kernels.triton.linear.triton_linear import TritonLinear


@dataclass(frozen=True, slots=True)
class ExpertTiles:
    """Tiles of the two products, for steps with so many pairs for each expert on average.

    Attributes:
        few: rows of other tiles, for blocks of at most so many pairs; 0: there are none.
    """

    most_pairs: float
    gate_up: Tile
    down: Tile
    few: int = 0


# The last for any number. The fastest of 5 to 14 with as many rows, for the shapes of Qwen3-30B-A3B
# and gpt-oss-20b on an H200; us of both products of the former, and what reading the weights takes.
_TILES = (
    # 1 token: 25.9 and 18, in tiles of the next line 26.4
    ExpertTiles(0.25, Tile(16, 64, 256, 4, 4), Tile(16, 128, 64, 6, 4)),
    # 8 tokens: 118.8 and 117; 64: 275 and 283
    ExpertTiles(6, Tile(16, 128, 128, 3, 4), Tile(16, 128, 128, 3, 4)),
    # 256: 293 and 288, in blocks of 16 pairs 313
    ExpertTiles(20, Tile(32, 64, 64, 6, 4), Tile(32, 64, 128, 3, 4), few=16),
    # 512: 305 and 288, without the smaller tiles 308; 1,024: 350, and 371 without
    ExpertTiles(96, Tile(64, 128, 64, 3, 4), Tile(64, 128, 64, 3, 4), few=32),
    # 4,096: 648, and 675 without the smaller tiles; 442 at 700 TFLOP/s
    ExpertTiles(0, Tile(128, 256, 64, 4, 8), Tile(128, 128, 64, 3, 4), few=32),
)
# pairs up to which each is a block of its own: few share an expert, and sorting takes a launch
UNSORTED_PAIRS = 16


class TritonExperts:
    """See `kernels.backend.KernelBackend.make_experts`.

    Attributes:
        weights: not to be changed; rows of gate and up matrix in groups, see `in_groups`.
    """

    def __init__(self, weights: ExpertWeights, routing: Routing) -> None:
        in_groups(weights.gate_up)
        if weights.gate_up_bias is not None:
            in_groups(weights.gate_up_bias)
        self.weights = weights
        self._routing = routing
        self._router: TritonRouter | None = None
        self._logits: TritonLinear | None = None
        if routing.num_groups == 1:
            self._router = TritonRouter(
                weights.router, weights.router_bias, weights.choice_bias, routing
            )
        else:
            self._logits = TritonLinear(weights.router, weights.router_bias)

    def __call__(self, x: Tensor, *, is_deterministic: bool = False) -> Tensor:
        """Send tokens [T, hidden] through their experts; see `kernels.backend.Linear`."""
        ids, pair_weights = self.route(x, is_deterministic=is_deterministic)
        return self.run(x, ids, pair_weights)

    def route(self, x: Tensor, *, is_deterministic: bool = False) -> tuple[Tensor, Tensor]:
        """Choose experts for tokens -> ids [T, top_k] int32, weights [T, top_k] float32."""
        if self._router is not None:
            return self._router(x, is_deterministic=is_deterministic)
        assert self._logits is not None
        logits = self._logits(x, is_deterministic=is_deterministic)
        ids, pair_weights = choose_experts(logits, self.weights.choice_bias, self._routing)
        return ids.int(), pair_weights.contiguous()

    def run(
        self, x: Tensor, ids: Tensor, pair_weights: Tensor, tiles: ExpertTiles | None = None
    ) -> Tensor:
        """Send tokens [T, hidden] through given experts.

        Args:
            ids: [T, top_k] int32, contiguous.
            pair_weights: [T, top_k] float32, contiguous.
            tiles: None takes the fastest known; no part of the bits.
        """
        if not len(x):
            return torch.empty_like(x)
        weights, first = self.weights, self._routing.first_expert
        num_experts, top_k = len(weights.gate_up), self._routing.top_k
        tiles = tiles or tiles_for(ids.numel(), num_experts)
        pairs: SortedPairs | Tensor = ids
        if ids.numel() > UNSORTED_PAIRS:
            pairs = sort_pairs(ids, first, num_experts, tiles.gate_up.rows)
        hidden = gate_up_product(
            x,
            weights.gate_up,
            weights.gate_up_bias,
            pairs,
            top_k,
            first,
            tiles.gate_up,
            tiles.few,
            limit=weights.limit,
        )
        parts = down_product(
            hidden,
            weights.down,
            weights.down_bias,
            pairs,
            pair_weights,
            first,
            tiles.down,
            tiles.few,
        )
        return combine(parts, ids, first, num_experts, len(weights.router))


def tiles_for(num_pairs: int, num_experts: int) -> ExpertTiles:
    """The tiles that are fastest for a step."""
    pairs = num_pairs / num_experts
    return next((tiles for tiles in _TILES if pairs <= tiles.most_pairs), _TILES[-1])
