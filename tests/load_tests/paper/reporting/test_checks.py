from dataclasses import asdict, replace

from load_tests.paper.experiments.catalogue import catalogue
from load_tests.paper.experiments.cells import Cell, CellResult
from load_tests.paper.experiments.live_catalogue import ORACLE, SHAREGPT, live_catalogue
from load_tests.paper.experiments.opt_models import MODELS, figure_19a
from load_tests.paper.experiments.panels import Panel
from load_tests.paper.experiments.scales import SCALES
from load_tests.paper.findings import Findings
from load_tests.paper.reporting.checks import PaperCheck, checks
from load_tests.paper.runners.simulated import simulate

SOME = simulate(Cell(rate_per_s=2.0, duration_s=5.0), {}).result


def _found(panel_name: str, **by_label: list[float]) -> list[PaperCheck]:
    """Judge a panel whose curves have these values, in the order of its curves.

    The last value also stands for the points that follow.
    """
    panel: Panel = next(panel for panel in catalogue(SCALES["full"]) if panel.name == panel_name)
    results: dict[Cell, tuple[CellResult, ...]] = {}
    for points, values in zip(panel.curves.values(), by_label.values(), strict=True):
        for index, (_, cell) in enumerate(points):
            value = values[min(index, len(values) - 1)]
            results[cell] = (CellResult(**(asdict(SOME) | {panel.y: value})),)
    return checks(Findings(runners=("simulated",), panels={panel.name: panel}, results=results))


def test_batch_sizes_are_judged_within_a_tenth() -> None:
    rows = _found("13a", paged=[33.4], oracle=[13.6], pow2=[8.8], max=[7.0])
    assert [row.verdict for row in rows] == ["inside", "inside", "outside", "inside"]


def test_shares_are_judged_within_three_points() -> None:
    rows = _found("2", paged=[93.4], oracle=[41.3], pow2=[26.8], max=[20.4])
    assert [row.verdict for row in rows] == ["inside", "outside", "inside", "inside"]


def test_gains_are_judged_by_the_rates_at_which_latency_rises() -> None:
    paged = [0.1, 0.1, 0.1, 0.1, 0.9, 0.9]
    slow = [0.1, 0.1, 0.9, 0.9, 0.9]
    rows = _found(
        "12a",
        paged=paged,
        oracle=slow,
        pow2=[0.1, 0.9, 0.9, 0.9],
        max=[0.1, 0.1, 0.9, 0.9],
        faster=[0.1, 0.1, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9],
    )
    gains = {row.quantity: row for row in rows}
    oracle = gains["sustained rate, paged / Orca (Oracle)"]
    # 1.825 over 0.875
    assert (oracle.values, oracle.verdict) == (("2.086",), "inside")
    assert gains["sustained rate, paged / FasterTransformer"].verdict == "outside"
    # Pow2 sustains less than Max here
    assert rows[-1].verdict == "outside"


def test_a_curve_that_never_rises_leaves_the_question_open() -> None:
    rows = _found("17", paged=[0.1] * 6, oracle=[0.1] * 5 + [9], pow2=[9.0] * 6, max=[0.1] * 6)
    assert [row.verdict for row in rows[:3]] == ["open", "outside", "open"]


def test_the_paper_s_table_is_met_and_every_row_has_its_band() -> None:
    rows = checks(
        Findings(
            runners=("simulated",),
            panels={},
            results={},
            table_1=tuple(MODELS.values()),
            recoveries=figure_19a(),
        )
    )
    assert {row.panel for row in rows} == {"1", "19a"}
    assert all(row.verdict == "inside" for row in rows if row.figure == "1")
    assert all(row.band for row in rows)


def test_a_model_that_the_paper_has_in_figure_12_only_is_judged_there() -> None:
    rates = {SHAREGPT: 3.0, ORACLE: 1.0}
    panels = {p.name: p for p in live_catalogue(SCALES["quick"].live, rates, "66B")}
    panel = panels["2"]
    results = {
        cell: (replace(SOME, sustained_per_s=4.8 if cell.system == "paged" else 2.0),) * 2
        for cell in panel.cells
    }
    found = Findings(runners=("engine", "simulated"), panels={"2": panel}, results=results)
    assert [(row.panel, row.values[0], row.verdict) for row in checks(found)] == [
        ("12b", "2.4", "inside"),
        ("12b", "2.4", "outside"),
    ]
