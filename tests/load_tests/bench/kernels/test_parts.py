"""Shares and ratios of the kernel benchmark; the races themselves need a GPU."""

import argparse
import json
from pathlib import Path

import pytest
import torch

from load_tests.__main__ import main
from load_tests.bench.kernels.parts import EXAMPLE, headline, run, table_rows
from load_tests.bench.kernels.race import CallTime, KernelFigure
from load_tests.card import Ceilings

SHEET = Ceilings(bytes_per_s=4e12, flops=1000e12)
MEASURED = Ceilings(bytes_per_s=2e12, flops=500e12)


def figure(case: str, system: str, us: float, num_bytes: float, num_flops: float) -> KernelFigure:
    return KernelFigure(
        group="decode",
        case=case,
        system=system,
        timing=CallTime(us=us, low_us=us - 1, high_us=us + 1),
        num_bytes=num_bytes,
        num_flops=num_flops,
    )


# bytes decide the first case (25 us at 4 TB/s), arithmetic the second (10 us at 1000 TFLOP/s)
FIGURES = [
    figure("a", "pagoda", 50.0, 100e6, 1e9),
    figure("a", "FA3", 40.0, 100e6, 1e9),
    figure("b", "pagoda", 20.0, 1e6, 10e9),
    figure("b", "FA3", 60.0, 1e6, 10e9),
]


def test_rows_give_shares_of_both_ceilings() -> None:
    rows = table_rows(FIGURES, SHEET, MEASURED)
    assert rows == [
        ["a", "pagoda", "50.0", "49.0", "51.0", "2.00", "20", "50", "100", "1.00"],
        ["", "FA3", "40.0", "39.0", "41.0", "2.50", "25", "62", "125", "0.80"],
        ["b", "pagoda", "20.0", "19.0", "21.0", "0.05", "500", "50", "100", "1.00"],
        ["", "FA3", "60.0", "59.0", "61.0", "0.02", "167", "17", "33", "3.00"],
    ]


def test_the_headline_gives_the_least_and_the_most() -> None:
    assert headline(FIGURES) == "decode: time over ours FA3 0.80-3.00"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(ValueError, match="NVIDIA GPU"):
        run(argparse.Namespace())


def test_the_example_is_the_command() -> None:
    assert EXAMPLE.startswith("python -m load_tests kernels ")


@pytest.mark.gpu
def test_every_part_is_raced(tmp_path: Path) -> None:
    assert main(["kernels", "--quick", "--repeats", "2", "--output", str(tmp_path)]) == 0
    [path] = tmp_path.glob("kernels_*.json")
    figures = json.loads(path.read_text())["figures"]
    assert {figure["group"].split()[0].rstrip(",") for figure in figures} >= {
        "decode",
        "prefill",
        "sampling",
    }
    assert all(figure["timing"]["us"] > 0 for figure in figures)
