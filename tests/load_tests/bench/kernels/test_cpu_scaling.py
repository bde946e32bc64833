"""The table that says by how much threads speed up each operation."""

import pytest

from load_tests.bench.kernels.cpu_scaling import Step, columns, print_scaling, table_rows

STEPS = {
    1: [
        Step(total_s=0.010, spent_s={"linears": 0.006, "norms": 0.003}),
        Step(total_s=0.012, spent_s={"linears": 0.008, "norms": 0.003}),
        Step(total_s=0.020, spent_s={"linears": 0.016, "norms": 0.003}),
    ],
    2: [Step(total_s=0.006, spent_s={"linears": 0.0025, "norms": 0.003})],
}
REPEATED = {1: [0.008, 0.010], 2: [0.005]}


def test_each_operation_is_compared_by_medians_and_by_its_best_steps() -> None:
    rows = {name: cells for name, *cells in table_rows(STEPS, REPEATED)}
    assert list(rows) == ["linears", "norms", "between", "step", "step, recorded"]
    assert rows["linears"] == ["8.00", "2.50", "3.20", "6.00", "2.50", "2.40"]
    assert rows["norms"] == ["3.00", "3.00", "1.00", "3.00", "3.00", "1.00"]
    assert rows["between"] == ["1.00", "0.50", "2.00", "1.00", "0.50", "2.00"]
    assert rows["step"] == ["12.00", "6.00", "2.00", "10.00", "6.00", "1.67"]
    assert rows["step, recorded"] == ["9.00", "5.00", "1.80", "8.00", "5.00", "1.60"]


def test_each_cell_has_a_column() -> None:
    assert all(len(row) == len(columns(STEPS)) for row in table_rows(STEPS, REPEATED))


def test_the_table_says_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    print_scaling("32 rows", STEPS, REPEATED)
    printed = capsys.readouterr().out
    assert "32 rows" in printed
    assert "2 thr, ms" in printed
    assert "step, recorded" in printed
