import pytest
import torch

from load_tests.bench.in_process.kernel_times import KernelTime, profile_steps, show


def test_operations_are_counted_by_step() -> None:
    matrix = torch.ones(64, 64)

    def steps() -> int:
        for _ in range(4):
            torch.mm(matrix, matrix)
            torch.mm(matrix, matrix)
        return 4

    times = profile_steps(steps)
    assert times == sorted(times, key=lambda time: -time.us)
    product = next(time for time in times if time.name == "aten::mm")
    assert product.launches == 2
    assert product.us > 0


def test_short_ones_share_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("attention", "linear", "norm", "copy")
    times = [
        KernelTime(name=name, launches=2, us=us)
        for name, us in zip(names, (50, 30, 15, 5), strict=True)
    ]
    show("a step", times, most=2)
    printed = capsys.readouterr().out
    assert "a step, 100 us" in printed
    assert "norm" not in printed
    (line,) = (line for line in printed.splitlines() if "2 others" in line)
    assert [cell.strip() for cell in line.split("│")[2:5]] == ["4", "20.0", "20.0"]
