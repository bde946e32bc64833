"""When GPUs sum in each other's memory: their bits, and what happens where they cannot."""

import logging
import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from engine.config import EngineConfig
from engine.model import peer_memory
from engine.model.parallel import TensorParallel, connect, local_device
from engine.model.peer_memory import share_memory, with_peer_memory
from kernels.row_sums import NormWeights, RowSums
from tests.engine.model.thread_ranks import thread_ranks
from tests.engine.model.tiny import TinyModel

_WIDTH = 1000
CUDA = torch.device("cuda", 0)


@pytest.fixture
def config(tiny: TinyModel) -> EngineConfig:
    return tiny.config(tensor_parallel_size=2)


@pytest.mark.parametrize(
    ("changes", "is_one_node", "reason"),
    [
        ({"peer_memory": False}, True, "peer_memory is off"),
        ({}, False, "several nodes"),
        ({"compiled_kernels": False}, True, "no kernels"),
        ({"hidden_size": 16400}, True, "rows of 16400 numbers"),
        ({"hidden_size": 3}, True, "rows of 3 numbers"),
    ],
)
def test_the_log_says_why_nccl_sums_everything(
    config: EngineConfig,
    changes: dict[str, Any],
    is_one_node: bool,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    if "hidden_size" in changes:
        changes = {"model": replace(config.model, **changes)}
    config = config.with_options(**changes)
    parallel = with_peer_memory(TensorParallel(0, 2), config, CUDA, is_one_node=is_one_node)
    assert parallel.row_sums is None
    (line,) = caplog.messages
    assert line.startswith("row_sums by=nccl")
    assert reason in line


def test_nothing_is_shared_by_one_rank_or_on_a_cpu(
    config: EngineConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for parallel, device in ((TensorParallel(), CUDA), (thread_ranks(2)[0], torch.device("cpu"))):
        assert with_peer_memory(parallel, config, device, is_one_node=True) is parallel
    assert not caplog.messages


def test_a_refusal_is_a_reason() -> None:
    def refuse() -> RowSums:
        raise RuntimeError("no peer access\nmore")

    assert peer_memory._tried(refuse) == (None, "RuntimeError: no peer access")


@pytest.mark.gpu
@pytest.mark.parametrize("size", [2, 4])
def test_gpus_sum_the_same_bits_in_every_batch(size: int, tmp_path: Path) -> None:
    _on_gpus(size, _sum_everywhere, tmp_path)


@pytest.mark.gpu
def test_replays_of_a_graph_go_on_counting(tmp_path: Path) -> None:
    _on_gpus(2, _replay, tmp_path)


def _on_gpus(size: int, work: Callable[[TensorParallel], str], folder: Path) -> None:
    """Have ranks do some work, which says what is wrong."""
    if torch.cuda.device_count() < size:
        pytest.skip(f"needs {size} GPUs")
    context = multiprocessing.get_context("spawn")
    rendezvous = (folder / "rendezvous").as_uri()
    pipes = [context.Pipe() for _ in range(size)]
    ranks = [
        context.Process(target=_be_rank, args=(work, rank, size, rendezvous, far), daemon=True)
        for rank, (_, far) in enumerate(pipes)
    ]
    for rank in ranks:
        rank.start()
    for _, far in pipes:
        far.close()
    try:
        assert [near.recv() if near.poll(120) else "late" for near, _ in pipes] == [""] * size
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()


def _be_rank(
    work: Callable[[TensorParallel], str], rank: int, size: int, rendezvous: str, answer: Connection
) -> None:
    device = local_device("cuda", rank)
    parallel = connect(rank, size, rendezvous, device)
    with torch.inference_mode():
        answer.send(work(parallel))
    torch.cuda.synchronize()
    answer.poll(120)


def _sum_everywhere(parallel: TensorParallel) -> str:
    device = torch.device("cuda", torch.cuda.current_device())
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        sums = share_memory(parallel, _WIDTH, dtype, device)
        norm = NormWeights(torch.rand(_WIDTH, device=device), None, 1e-5)
        generator = torch.Generator(device).manual_seed(parallel.rank)
        x = torch.randn(700, _WIDTH, generator=generator, device=device).to(dtype)
        gathered = [torch.empty_like(x) for _ in range(parallel.size)]
        dist.all_gather(gathered, x)
        exact = torch.zeros(700, _WIDTH, device=device)
        for part in gathered:
            exact += part.float()
        exact = exact.to(dtype)
        normed = None
        # 700 in two launches, of which the second is small
        for num_rows in (1, 3, 64, 65, 300, 700):
            if not torch.equal(sums.sum_rows(x[:num_rows].clone()), exact[:num_rows]):
                return f"{num_rows} rows of {dtype} are not the sum in the order of the ranks"
            residual = torch.zeros_like(x[:num_rows])
            out = sums.sum_rows(x[:num_rows].clone(), residual, norm)
            normed = out if normed is None else normed
            if not (torch.equal(residual, exact[:num_rows]) and torch.equal(out[0], normed[0])):
                return f"the first of {num_rows} rows of {dtype} depends on the others"
        dist.all_reduce(x)
        if not torch.allclose(x.float(), exact.float(), rtol=2e-2, atol=2e-2):
            return f"NCCL sums {dtype} otherwise"
    return ""


def _replay(parallel: TensorParallel) -> str:
    device = torch.device("cuda", torch.cuda.current_device())
    sums = share_memory(parallel, 64, torch.float32, device)
    for num_rows in (1, 100, 500):
        source, x = (torch.zeros(num_rows, 64, device=device) for _ in range(2))
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            sums.sum_rows(x)
            graph.capture_begin(capture_error_mode="thread_local")
            x.copy_(source)
            sums.sum_rows(x)
            graph.capture_end()
        stream.synchronize()
        for number in range(5):
            source.fill_(number + parallel.rank)
            graph.replay()
            if not (x == 2 * number + 1).all():
                return f"replay {number} of {num_rows} rows is {x[0, 0].item()}"
            sums.sum_rows(torch.zeros(num_rows, 64, device=device))
    return ""
