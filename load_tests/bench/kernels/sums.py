"""Command `sums`: the time of a sum over GPUs and the norm behind it, by our kernels and by NCCL.

Each rank is a process. A CUDA graph holds many sums in a row, as a decode step has two in every
layer, and is replayed. Every way is checked first: against float64, for the same bits on all ranks,
and for the same bits of a row in every batch.
"""

import argparse
import multiprocessing
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from engine.model.parallel import TensorParallel, connect, local_device
from engine.model.peer_memory import share_memory
from kernels.row_sums import NormWeights
from kernels.triton.norm import add_rms_norm
from kernels.triton.peers.peer_sum import WAYS, PeerSum, Way
from load_tests import machine, report
from load_tests.card import device_s
from load_tests.options import at_least, several

EXAMPLE = "python -m load_tests sums --ranks 4 --rows 1,16,64,256"

_SUMS_PER_GRAPH = 64
_REPLAYS = 15
_EPS = 1e-5
_NCCL = "nccl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `sums`."""
    parser.add_argument("--ranks", type=at_least(2), default=2, help="GPUs")
    parser.add_argument(
        "--rows",
        type=several(at_least(1)),
        default=[1, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512],
        metavar="N,...",
    )
    parser.add_argument("--width", type=at_least(8), default=4096, help="numbers in a row")
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument(
        "--ways", type=several(str), default=list(WAYS), metavar="NAME,...", help="of our kernels"
    )
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, print and write."""
    if (num_gpus := torch.cuda.device_count()) < args.ranks:
        raise ValueError(f"{args.ranks} ranks need as many GPUs; there are {num_gpus}")
    files = report.start(args, "sums")
    context = multiprocessing.get_context("spawn")
    near, far = context.Pipe()
    with tempfile.TemporaryDirectory() as name:
        rendezvous = (Path(name) / "rendezvous").as_uri()
        ranks = [
            context.Process(target=_measure, args=(args, rank, rendezvous, far), daemon=True)
            for rank in range(args.ranks)
        ]
        for rank in ranks:
            rank.start()
        far.close()
        try:
            times: dict[str, dict[int, float]] = near.recv()
        except EOFError as error:
            raise ValueError("the ranks failed") from error
        finally:
            for rank in ranks:
                rank.join()
    titles = ("rows", "KiB", *(f"{way}\nus" for way in times))
    row_bytes = 2 * args.width
    report.print_table(
        f"{args.ranks} x {machine.name()}: a sum of rows of {args.width} {args.dtype}, and a norm",
        titles,
        [
            (str(rows), f"{rows * row_bytes / 1024:.0f}", *(_cell(t, rows) for t in times.values()))
            for rows in args.rows
        ],
    )
    figures = {"ranks": args.ranks, "width": args.width, "dtype": args.dtype, "us": times}
    files.finish(figures, f"{args.ranks} ranks, {args.rows[0]} rows: " + _headline(times, args))
    return 0


def _cell(times: dict[int, float], rows: int) -> str:
    return f"{times[rows]:.1f}" if rows in times else "-"


def _headline(times: dict[str, dict[int, float]], args: argparse.Namespace) -> str:
    return ", ".join(f"{way} {_cell(found, args.rows[0])} us" for way, found in times.items())


@torch.inference_mode()
def _measure(args: argparse.Namespace, rank: int, rendezvous: str, answer: Connection) -> None:
    """Be a rank; the first one answers."""
    device = local_device("cuda", rank)
    dtype: torch.dtype = getattr(torch, args.dtype)
    parallel = connect(rank, args.ranks, rendezvous, device)
    sums = share_memory(parallel, args.width, dtype, device)
    norm = NormWeights(torch.ones(args.width, dtype=dtype, device=device), None, _EPS)
    inputs = {rows: _parts(rows, args.width, dtype, rank, device) for rows in args.rows}
    times: dict[str, dict[int, float]] = {way: {} for way in (*args.ways, _NCCL)}
    for way in args.ways:
        for rows, x in inputs.items():
            if rows <= sums.most_rows(way):
                _check(sums, parallel, way, x)
                times[way][rows] = _time_us(_by_kernel(sums, way, norm, x))
    for rows, x in inputs.items():
        times[_NCCL][rows] = _time_us(_by_nccl(norm, x))
    if rank == 0:
        answer.send(times)
    answer.close()
    torch.cuda.synchronize(device)
    parallel.close()


def _parts(rows: int, width: int, dtype: torch.dtype, rank: int, device: torch.device) -> Tensor:
    generator = torch.Generator(device).manual_seed(rank)
    return torch.randn(rows, width, generator=generator, device=device).to(dtype)


def _check(sums: PeerSum, parallel: TensorParallel, way: Way, x: Tensor) -> None:
    """Compare with float64, between the ranks, and with single rows.

    Raises:
        ValueError: if they differ.
    """
    gathered = [torch.empty_like(x) for _ in range(parallel.size)]
    dist.all_gather(gathered, x)
    exact = torch.stack(gathered).double().sum(0)
    total = sums.sum_rows(x.clone(), way=way)
    if not torch.allclose(total.double(), exact, rtol=2e-2, atol=2e-2):
        raise ValueError(f"{way} of {len(x)} rows is wrong by {(total - exact).abs().max()}")
    everywhere = [torch.empty_like(x) for _ in range(parallel.size)]
    dist.all_gather(everywhere, total)
    if not all(torch.equal(other, total) for other in everywhere):
        raise ValueError(f"{way} of {len(x)} rows has other bits on other ranks")
    for row in {0, len(x) // 2, len(x) - 1}:
        if not torch.equal(sums.sum_rows(x[row : row + 1].clone(), way=way)[0], total[row]):
            raise ValueError(f"{way}: row {row} of {len(x)} has other bits by itself")


def _by_kernel(sums: PeerSum, way: Way, norm: NormWeights, x: Tensor) -> Callable[[], object]:
    residual = torch.zeros_like(x)
    return lambda: sums.sum_rows(x, residual, norm, way=way)


def _by_nccl(norm: NormWeights, x: Tensor) -> Callable[[], object]:
    residual, own = torch.zeros_like(x), x.clone()

    def work() -> None:
        dist.all_reduce(own)
        add_rms_norm(own, residual, norm.weight, _EPS)

    return work


def _time_us(work: Callable[[], object]) -> float:
    """Microseconds of one of many in a graph."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
        torch.cuda.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        for _ in range(_SUMS_PER_GRAPH):
            work()
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    times_s = [device_s(graph.replay) for _ in range(_REPLAYS)]
    return 1e6 * median(times_s[3:]) / _SUMS_PER_GRAPH
