"""Part `experts`: layers of Qwen3-30B-A3B and Mixtral 8x7B, whole and kernel by kernel.

The least bytes are those of the experts that the tokens chose, each read once. `torch` multiplies
expert by expert with cuBLAS, by a loop on the host that knows the choices.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels.experts import ExpertWeights, Routing
from kernels.triton.experts.combine import combine
from kernels.triton.experts.down import down_product
from kernels.triton.experts.gate_groups import GATE_ROWS
from kernels.triton.experts.gate_up import gate_up_product
from kernels.triton.experts.sort import SortedPairs, sort_pairs
from kernels.triton.experts.triton_experts import UNSORTED_PAIRS, TritonExperts, tiles_for
from load_tests.bench.kernels.race import (
    Call,
    KernelCase,
    KernelFigure,
    normal,
    race,
)

_VALUE_BYTES = 2


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Experts of one layer."""

    num_experts: int
    top_k: int
    hidden: int
    inner: int


SHAPES = {
    "Qwen3-30B-A3B": LayerShape(128, 8, 2048, 768),
    "Mixtral 8x7B": LayerShape(8, 2, 4096, 14336),
}
_NUM_ROWS = (1, 8, 32, 64, 256, 4096)


def measure(args: argparse.Namespace) -> Iterator[KernelFigure]:
    """Race all shapes and numbers of tokens."""
    for name, shape in SHAPES.items():
        layers = [make_layer(shape) for _ in range(2)]
        for num_rows in _NUM_ROWS[:: 3 if args.quick else 1]:
            yield from _race(name, shape, layers, num_rows, args.repeats)
        del layers
        torch.cuda.empty_cache()


def make_layer(shape: LayerShape) -> TritonExperts:
    """A layer with random weights."""
    weights = ExpertWeights(
        router=normal(shape.num_experts, shape.hidden) * 0.02,
        gate_up=_stack(shape.num_experts, 2 * shape.inner, shape.hidden),
        down=_stack(shape.num_experts, shape.hidden, shape.inner),
    )
    return TritonExperts(weights, Routing(top_k=shape.top_k, renormalises=True))


def _stack(*shape: int) -> Tensor:
    return normal(*shape).mul_(0.02)


def _race(
    name: str, shape: LayerShape, layers: list[TritonExperts], num_rows: int, repeats: int
) -> Iterator[KernelFigure]:
    # other tokens for each call, so that few experts are found in a cache
    xs = [normal(num_rows, shape.hidden) for _ in range(8 if num_rows < 64 else 2)]
    chosen = [layers[place % 2].route(x) for place, x in enumerate(xs)]
    num_hit = sum(len(set(ids.flatten().tolist())) for ids, _ in chosen) / len(xs)
    num_pairs = num_rows * shape.top_k
    whole: dict[str, list[Call]] = {
        "pagoda": [_bound(layers[place % 2], x) for place, x in enumerate(xs)]
    }
    if num_rows >= shape.num_experts:
        whole["torch"] = [
            _looped(layers[place % 2].weights, x, ids, shares)
            for place, (x, (ids, shares)) in enumerate(zip(xs, chosen, strict=True))
        ]
    matrix = shape.hidden * shape.inner
    yield from race(
        KernelCase(
            group=f"experts, {name}: layer",
            case=f"{num_rows} tokens",
            num_bytes=_VALUE_BYTES * (3 * matrix * num_hit + 2 * num_rows * shape.hidden),
            num_flops=6 * num_pairs * matrix,
        ),
        whole,
        repeats,
    )
    stages = [_Stages(layers[place % 2], x) for place, x in enumerate(xs)]
    for stage, num_matrices in (("gate_up", 2), ("down", 1)):
        calls: list[Call] = [getattr(one, stage) for one in stages]
        yield from race(
            KernelCase(
                group=f"experts, {name}: {stage}",
                case=f"{num_rows} tokens",
                num_bytes=_VALUE_BYTES
                * (num_matrices * matrix * num_hit + num_pairs * (shape.hidden + shape.inner)),
                num_flops=2 * num_matrices * num_pairs * matrix,
            ),
            {"pagoda": calls},
            repeats,
        )
    for stage in ("route", "sort", "combine"):
        yield from race(
            KernelCase(
                group=f"experts, {name}: {stage}",
                case=f"{num_rows} tokens",
                num_bytes=_VALUE_BYTES * num_rows * shape.hidden,
            ),
            {"pagoda": [getattr(one, stage) for one in stages]},
            repeats,
        )


class _Stages:
    """The calls that a layer makes for some tokens."""

    def __init__(self, layer: TritonExperts, x: Tensor) -> None:
        self._layer, self._x = layer, x
        self._ids, self._shares = layer.route(x)
        self._held = len(layer.weights.gate_up)
        self._tiles = tiles_for(self._ids.numel(), self._held)
        is_sorted = self._ids.numel() > UNSORTED_PAIRS
        self._pairs: SortedPairs | Tensor = self.sort() if is_sorted else self._ids
        self._hidden = self.gate_up()
        self._parts = self.down()

    def route(self) -> tuple[Tensor, Tensor]:
        return self._layer.route(self._x)

    def sort(self) -> SortedPairs:
        return sort_pairs(self._ids, 0, self._held, self._tiles.gate_up.rows)

    def gate_up(self) -> Tensor:
        weight, top_k = self._layer.weights.gate_up, self._ids.shape[1]
        tiles = self._tiles
        return gate_up_product(
            self._x, weight, None, self._pairs, top_k, 0, tiles.gate_up, tiles.few
        )

    def down(self) -> Tensor:
        weight, tiles = self._layer.weights.down, self._tiles
        return down_product(
            self._hidden, weight, None, self._pairs, self._shares, 0, tiles.down, tiles.few
        )

    def combine(self) -> Tensor:
        return combine(self._parts, self._ids, 0, self._held, self._held)


def _bound(layer: TritonExperts, x: Tensor) -> Callable[[], Tensor]:
    return lambda: layer(x)


def _looped(weights: ExpertWeights, x: Tensor, ids: Tensor, shares: Tensor) -> Call:
    """Products of expert after expert, whose tokens are known beforehand."""
    experts = [
        (expert, *torch.nonzero(ids == expert, as_tuple=True))
        for expert in sorted(set(ids.flatten().tolist()))
    ]

    def run() -> Tensor:
        out = torch.zeros_like(x)
        for expert, tokens, slots in experts:
            rows = functional.linear(x[tokens], weights.gate_up[expert])
            gates, ups = rows.view(len(rows), -1, 2, GATE_ROWS).unbind(2)
            inner = (functional.silu(gates) * ups).flatten(1)
            outer = functional.linear(inner, weights.down[expert])
            out.index_add_(0, tokens, (outer * shares[tokens, slots, None]).to(x.dtype))
        return out

    return run
