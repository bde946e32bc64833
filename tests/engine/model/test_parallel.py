"""Which part of a model each rank holds, how ranks find each other, and who sums what."""

import socket
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.model.norms import RmsNorm, add_sum
from engine.model.parallel import TensorParallel, local_device, store_at
from kernels.reference import ReferenceBackend
from kernels.row_sums import NormWeights


def spans(count: int, size: int, **settings: int) -> list[tuple[int, int]]:
    """Where the rows of each rank begin and end."""
    ranks = (TensorParallel(rank, size) for rank in range(size))
    found = (rank.span(count, "rows", **settings) for rank in ranks)
    return [(span.start, span.stop) for span in found]


def test_rows_are_split_in_the_order_of_the_ranks() -> None:
    assert spans(12, 3) == [(0, 4), (4, 8), (8, 12)]
    with pytest.raises(ConfigError, match=r"rows \(12\) .* tensor_parallel_size=5"):
        spans(12, 5)


def test_a_rank_holds_the_key_value_heads_of_its_queries() -> None:
    # 8 rows are 4 heads of 2 rows, or 2 heads of 4, or one of 8
    assert spans(8, 2, num_heads=4) == [(0, 4), (4, 8)]
    assert spans(8, 4, num_heads=2) == [(0, 4), (0, 4), (4, 8), (4, 8)]
    assert spans(8, 3, num_heads=1) == [(0, 8)] * 3


SOON = timedelta(milliseconds=50)


def test_ranks_of_several_nodes_find_each_other_at_the_port_of_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        kept = store_at(f"{url}/gang?listener={listener.detach()}", 2, timedelta(seconds=10))
        met = store_at(f"{url}/gang", 2, timedelta(seconds=10))
        kept.set("rank-0", "here")
        assert met.get("rank-0") == b"here"


def test_a_rank_of_an_earlier_gang_finds_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        kept = store_at(f"{url}/second?listener={listener.detach()}", 2, timedelta(seconds=10))
        stale = store_at(f"{url}/first", 2, timedelta(seconds=10))
        kept.set("rank-0", "here")
        with pytest.raises(RuntimeError):
            stale.wait(["rank-0"], SOON)


def test_ranks_of_one_node_find_each_other_in_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "two words"
    folder.mkdir()
    url = (folder / "rendezvous").as_uri()
    first, second = (store_at(url, 2, timedelta(seconds=10)) for _ in range(2))
    first.set("rank-0", "here")
    assert second.get("rank-0") == b"here"


class Sums:
    """Sums rows of the right kind; another way is faster."""

    def __init__(self) -> None:
        self.calls: list[tuple[Tensor | None, NormWeights | None]] = []

    def fits(self, x: Tensor) -> bool:
        return True

    def is_fastest(self, x: Tensor) -> bool:
        return False

    def sum_rows(
        self, x: Tensor, residual: Tensor | None = None, norm: NormWeights | None = None
    ) -> Tensor:
        self.calls.append((residual, norm))
        return x


def test_deterministic_rows_are_summed_in_one_way_however_many_there_are() -> None:
    sums = Sums()
    parallel = TensorParallel(row_sums=sums)
    parallel.all_reduce(torch.zeros(9, 4))
    assert not sums.calls
    parallel.all_reduce(torch.zeros(9, 4), is_deterministic=True)
    assert sums.calls == [(None, None)]


def test_a_norm_is_part_of_the_sum_before_it() -> None:
    sums = Sums()
    norm = RmsNorm(torch.ones(4), 1e-5, ReferenceBackend(torch.device("cpu"), torch.float32))
    x, residual = torch.rand(9, 4), torch.zeros(9, 4)
    one_rank = TensorParallel(row_sums=sums)
    assert add_sum(norm, x, residual, one_rank, is_deterministic=True) is x
    assert sums.calls == [(residual, norm.weights)]
    # without it one follows the other
    normed = add_sum(norm, x, residual, one_rank, is_deterministic=False)
    assert torch.equal(residual, x)
    assert torch.equal(normed, norm(x))


def test_a_rank_takes_the_gpu_of_its_index_or_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    # ranks 0 and 2 of one node
    assert local_device("cuda", 2, 1) == torch.device("cuda", 1)
    assert local_device("cuda", 3) == torch.device("cuda", 1)
    assert local_device("cuda", 2) == torch.device("cuda", 0)
    assert taken == [1, 1, 0]
    with pytest.raises(ConfigError, match=r"rank 5 is to take GPU 2 .* finds 2"):
        local_device("cuda", 5, 2)
