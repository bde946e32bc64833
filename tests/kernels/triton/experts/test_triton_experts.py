"""Experts in kernels equal those of the reference, in batches of any size."""

from dataclasses import replace

import pytest
import torch

from kernels.experts import ExpertWeights, Routing
from kernels.triton.experts import triton_experts
from kernels.triton.experts.triton_experts import ExpertTiles, TritonExperts, tiles_for
from kernels.triton.linear.tiles import Tile
from tests.kernels.experts_cases import expected, make_weights, part_of
from tests.kernels.triton.precision import DTYPES, assert_near

_SMALL = ExpertTiles(0, Tile(16, 32, 32, 2, 4), Tile(16, 16, 32, 2, 4))
_LARGE = ExpertTiles(0, Tile(32, 32, 32, 2, 4), Tile(32, 16, 32, 2, 4), few=16)


def _layer(weights: ExpertWeights, routing: Routing) -> TritonExperts:
    """A layer with weights of its own, which it puts in another order."""
    bias = weights.gate_up_bias
    ours = replace(
        weights,
        gate_up=weights.gate_up.clone(),
        gate_up_bias=None if bias is None else bias.clone(),
    )
    return TritonExperts(ours, routing)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_experts, "_TILES", (_SMALL,))


@pytest.mark.usefixtures("small_tiles", "poisoned_outputs")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "num_rows", "top_k"),
    [((5, 40, 24), 1, 2), ((3, 72, 36), 23, 2)],
)
def test_sums_equal_the_reference(
    shape: tuple[int, int, int],
    num_rows: int,
    top_k: int,
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    torch.manual_seed(0)
    weights = make_weights(shape, dtype, device)
    routing = Routing(top_k=top_k, renormalises=True)
    x = torch.randn(num_rows, shape[1], device=device).to(dtype)
    assert_near(_layer(weights, routing)(x), expected(x, weights, routing))


@pytest.mark.parametrize("limit", [0.0, 0.5])
def test_biases_and_a_limit_count(limit: float, device: torch.device, small_tiles: None) -> None:
    torch.manual_seed(0)
    weights = make_weights((4, 40, 24), torch.float16, device, has_biases=True, limit=limit)
    routing = Routing(top_k=2)
    x = torch.randn(11, 40, device=device).half()
    assert_near(_layer(weights, routing)(x), expected(x, weights, routing))


@pytest.mark.usefixtures("poisoned_outputs")
def test_blocks_of_few_pairs_take_smaller_tiles(device: torch.device) -> None:
    torch.manual_seed(0)
    weights = make_weights((2, 40, 24), torch.float16, device, has_biases=True)
    layer = _layer(weights, Routing(top_k=1))
    x = torch.randn(61, 40, device=device).half()
    # blocks of 32 and 11 pairs of one expert, of 18 of the other
    ids = (torch.arange(61, device=device) % 10 > 6).int()[:, None].contiguous()
    shares = torch.rand(61, 1, device=device)
    whole = layer.run(x, ids, shares, _LARGE)
    assert_near(whole, layer.run(x, ids, shares, _SMALL))


def test_groups_are_chosen_as_in_the_reference(device: torch.device, small_tiles: None) -> None:
    torch.manual_seed(0)
    weights = make_weights((8, 40, 24), torch.float16, device)
    routing = Routing(top_k=2, score="sigmoid", num_groups=4, num_top_groups=2)
    x = torch.randn(9, 40, device=device).half()
    assert_near(_layer(weights, routing)(x), expected(x, weights, routing))


@pytest.mark.parametrize("num_rows", [2, 12])
def test_a_rank_with_some_experts_computes_their_part(
    num_rows: int, device: torch.device, small_tiles: None, poisoned_outputs: None
) -> None:
    torch.manual_seed(0)
    weights = make_weights((6, 40, 24), torch.float16, device, has_biases=True)
    x = torch.randn(num_rows, 40, device=device).half()
    for held in (range(2), range(2, 6)):
        routing = Routing(top_k=3, first_expert=held.start)
        layer = _layer(part_of(weights, held), routing)
        assert_near(layer(x), expected(x, weights, routing, held))


@pytest.mark.usefixtures("products_in_order")
def test_a_row_has_the_same_bits_in_every_batch(device: torch.device, small_tiles: None) -> None:
    torch.manual_seed(0)
    layer = TritonExperts(make_weights((4, 96, 40), torch.float16, device), Routing(top_k=2))
    x = torch.randn(30, 96, device=device).half()
    whole = layer(x, is_deterministic=True)
    spans = (slice(1), slice(1, 5), slice(5, None))
    parts = [layer(x[span], is_deterministic=True) for span in spans]
    assert torch.equal(torch.cat(parts), whole)


def test_rows_that_are_not_finite_do_not_touch_others(
    device: torch.device, small_tiles: None
) -> None:
    torch.manual_seed(0)
    layer = TritonExperts(make_weights((4, 40, 24), torch.float16, device), Routing(top_k=2))
    x = torch.randn(12, 40, device=device).half()
    good = layer(x)
    x[3, 2] = float("nan")
    spoiled = layer(x)
    kept = torch.tensor([row for row in range(12) if row != 3], device=device)
    assert torch.equal(spoiled[kept], good[kept])
    assert spoiled[3].isnan().all()


def test_a_batch_may_be_empty(device: torch.device) -> None:
    layer = TritonExperts(make_weights((6, 40, 24), torch.float16, device), Routing(top_k=2))
    assert layer(torch.empty(0, 40, dtype=torch.float16, device=device)).shape == (0, 40)


def test_more_pairs_for_each_expert_take_larger_tiles() -> None:
    rows = [tiles_for(num_pairs, 128).gate_up.rows for num_pairs in (8, 512, 2048, 8192, 1 << 15)]
    assert rows == sorted(rows)
    assert rows[0] < rows[-1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("tiles", triton_experts._TILES, ids=str)
def test_stages_fit_into_shared_memory(tiles: ExpertTiles, dtype: torch.dtype) -> None:
    hopper = 227 << 10
    for tile in (tiles.gate_up, tiles.down):
        fitted = tile.fitted(hopper, has_descriptors=True, value_bytes=dtype.itemsize)
        assert fitted.num_stages >= 2
        assert fitted.num_stages * fitted.stage_bytes(dtype.itemsize) <= hopper


# Sums of 512 terms one by one in float32, then of 384 what comes of them, are off by 4.4e-7 on
# average (root mean square) and by 1.2e-6 in rows whose shares are off most, by the same arithmetic
# on a CPU: of a million elements some by five times that. Products of TF32 would be by 1e-4.
_LARGE_LAYER = 2.0**-16


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("num_rows", [1, 2, 8, 64, 256, 1024, 4096])
def test_large_layers_equal_the_reference(
    num_rows: int, dtype: torch.dtype, device: torch.device
) -> None:
    torch.manual_seed(0)
    weights = make_weights((32, 512, 384), dtype, device)
    routing = Routing(top_k=4, renormalises=True)
    x = torch.randn(num_rows, 512, device=device).to(dtype)
    layer = _layer(weights, routing)
    assert_near(layer(x), expected(x, weights, routing), _LARGE_LAYER)
    # what a graph captures
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert_near(out, expected(x, weights, routing), _LARGE_LAYER)


@pytest.mark.usefixtures("products_in_order")
@pytest.mark.gpu
def test_tiles_are_no_part_of_the_bits(device: torch.device) -> None:
    torch.manual_seed(0)
    weights = make_weights((8, 512, 384), torch.bfloat16, device)
    layer = TritonExperts(weights, Routing(top_k=2))
    x = torch.randn(300, 512, device=device).bfloat16()
    ids, shares = layer.route(x)
    first = layer.run(x, ids, shares)
    for tiles in triton_experts._TILES:
        assert torch.equal(layer.run(x, ids, shares, replace(tiles, most_pairs=0)), first)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_row_of_a_large_layer_has_the_same_bits_in_every_batch(
    dtype: torch.dtype, device: torch.device
) -> None:
    """With every tile that the number of rows chooses, and as many columns as the router has."""
    torch.manual_seed(0)
    layer = TritonExperts(make_weights((128, 2048, 64), dtype, device), Routing(top_k=8))
    x = torch.randn(2600, 2048, device=device).to(dtype)
    ids, shares = layer.route(x, is_deterministic=True)
    whole = layer(x, is_deterministic=True)
    for num_rows in (1, 2, 32, 256, 300, 1500):
        some_ids, some_shares = layer.route(x[:num_rows], is_deterministic=True)
        assert torch.equal(some_ids, ids[:num_rows])
        assert torch.equal(some_shares, shares[:num_rows])
        assert torch.equal(layer(x[:num_rows], is_deterministic=True), whole[:num_rows])
