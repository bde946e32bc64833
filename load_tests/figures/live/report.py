"""Writes what the engine did: JSON and Markdown."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from load_tests.figures.live.catalogue import Extents, Rates
from load_tests.figures.live.checks import Check, Measured, both
from load_tests.figures.live.validation import (
    BATCH,
    BATCH_OVER_TIME,
    MOST_BATCH_PERCENT,
    MOST_KNEE_PERCENT,
    MOST_STEP_PERCENT,
    RATE,
    STEP_P50,
    STEP_P90,
    Row,
)
from load_tests.figures.report import TITLES
from load_tests.figures.static import Recovery
from load_tests.simulator.step_tables import StepTable

METHOD = (
    "The same experiments on the engine itself, in one process without HTTP: {model} with random "
    "weights in {dtype} on {card}, {num_blocks} blocks of 16 tokens as on the paper's card, "
    "prompts of equal tokens, outputs of exactly the drawn length. Rates are multiples of what the "
    "simulator says that this machine sustains, as it is not the paper's: 2 for figures 2 and 13a, "
    "0.95 for 13b and 18b, 1.5 for 14 and 16. Traces are short: {window_s:g} s of "
    "arrivals under overload with ShareGPT, {dense_window_s:g} s with other lengths, of which the "
    "first third is left out, and {arrivals_s:g} s for latencies, all requests then served to "
    "their end. Times without any request are cut out. Figures with a number of requests per "
    "second are rates sustained: tokens per second over the mean length. Beams follow the same "
    "ancestry as in the simulator, since random weights have none of their own, and one plan is in "
    "flight. The simulator runs the same traces with step times that were measured before. Times "
    "on a CPU are seconds that the process computes, so that others on the machine count less.",
    "Systems, bands and verdicts are those of figures.md; the verdict is on the engine's number. "
    "The paged batch of figure 13b has no band, since it depends on the card. What lies outside "
    "mostly has one of three causes. Memory decides slots and batches, on any machine; but on "
    "traces of seconds they follow the lengths that happen to be drawn, as the simulator's numbers "
    "do, which come from the same traces. Ratios of rates, block sizes and figure 19a also depend "
    "on where the time of a step goes, which on another card, and more so on a CPU with a tiny "
    "model, is not where the paper's A100 spends it. Last, a machine that changes its speed "
    "between the calibration and the cells puts the simulator's step times off, and with them its "
    "rates and latencies.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What the report tells row by row."""

    checks: Sequence[Check]
    validation: Sequence[Row]
    figure_19a: Sequence[Recovery]


def write(
    folder: Path,
    extents: Extents,
    measured: Measured,
    tables: Tables,
    context: tuple[StepTable, int, Rates],
    plots: Mapping[str, Path],
) -> None:
    """Write engine.json and engine.md.

    Args:
        folder: must exist; the plots lie in it.
        context: the card's step times, blocks of a cell, and rates that saturate it.
        plots: see `plots.plot`.
    """
    table, num_blocks, rates = context
    document = {
        "machine": table.machine,
        "model": table.model,
        "dtype": table.dtype,
        "num_blocks": num_blocks,
        "extents": asdict(extents),
        "saturating_rates": [asdict(load) | {"rate_per_s": rates[load]} for load in rates],
        "panels": _panels(measured),
        "checks": [asdict(row) for row in tables.checks],
        "validation": [asdict(row) | {"verdict": row.verdict} for row in tables.validation],
        "figure_19a": [asdict(row) for row in tables.figure_19a],
    }
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    (folder / "engine.json").write_text(text, encoding="utf-8")
    method = "\n\n".join(METHOD).format(
        model=table.model,
        dtype=table.dtype,
        card=" + ".join(_cards(table)),
        num_blocks=num_blocks,
        **asdict(extents),
    )
    lines = ["# The paper's figures on the engine", "", method, ""]
    lines += _checks(tables.checks, plots) + _validation(tables.validation, plots)
    (folder / "engine.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def headline(checks: Sequence[Check], rows: Sequence[Row]) -> str:
    """Count the verdicts."""
    parts = []
    for word, found in (("paper", checks), ("simulator", rows)):
        inside, outside = (
            sum(row.verdict == verdict for row in found) for verdict in ("inside", "outside")
        )
        parts.append(f"{word}: {inside} inside, {outside} outside")
    return "; ".join(parts)


def check_cells(row: Check) -> tuple[str, ...]:
    """The columns of a check."""
    simulated = "" if row.simulated is None else f"{row.simulated:.4g}"
    ours = f"{row.engine:.4g}"
    return row.panel, row.quantity, row.paper, ours, simulated, row.band, row.verdict


def cell_cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The promises of each cell, a line for each; what is outside has a mark."""
    return [
        (
            cell,
            _percent(own[STEP_P50]),
            _percent(own[STEP_P90]),
            *_compared(own[BATCH]),
            _percent(own[BATCH_OVER_TIME]),
            *(_compared(own[RATE]) if RATE in own else ("", "", "")),
        )
        for cell, own in _by_cell(rows).items()
    ]


def latency_cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The latencies of each cell whose requests are all served, both sides and the difference."""
    return [
        (cell, quantity, *_compared(row))
        for cell, own in _by_cell(rows).items()
        for quantity, row in own.items()
        if quantity not in (STEP_P50, STEP_P90, BATCH, BATCH_OVER_TIME, RATE)
    ]


CHECK_COLUMNS = ("panel", "quantity", "paper", "engine", "simulated", "band", "verdict")
CELL_COLUMNS = (
    "cell",
    "step, % p50",
    "% p90",
    "batch",
    "simulated",
    "%",
    "over time, %",
    "rate, req/s",
    "simulated",
    "%",
)
LATENCY_COLUMNS = ("cell", "latency", "engine", "simulated", "%")


def _checks(rows: Sequence[Check], plots: Mapping[str, Path]) -> list[str]:
    lines = []
    for figure in dict.fromkeys((*(row.figure for row in rows), *plots)):
        if figure == "0":
            continue
        lines += [f"## {TITLES[figure]}", ""]
        if figure in plots:
            lines += [f"![{TITLES[figure]}]({plots[figure].name})", ""]
        own = [check_cells(row) for row in rows if row.figure == figure]
        lines += [*_table(CHECK_COLUMNS, own), ""] if own else []
    return lines


def _validation(rows: Sequence[Row], plots: Mapping[str, Path]) -> list[str]:
    lines = ["## The simulator against the engine", ""]
    promise = (
        f"Promised: steps within {MOST_STEP_PERCENT:g} % at the median, batches within "
        f"{MOST_BATCH_PERCENT:g} %, sustained rates within {MOST_KNEE_PERCENT:g} %; what is not "
        "has a !. The time of each step of the engine is predicted from what it computed: so many "
        "percent half of them are off at most (p50), or nine tenths (p90); one that the host "
        "launches kernel by kernel counts with the one before it, behind which the launch hides. "
        "Batches are means over steps on both sides, and over time the mean distance of the two."
    )
    lines += [promise, ""]
    if "0" in plots:
        lines += [f"![Batch over time]({plots['0'].name})", ""]
    lines += [*_table(CELL_COLUMNS, cell_cells(rows)), ""]
    latencies = latency_cells(rows)
    for cell in dict.fromkeys(cell for cell, *_ in latencies):
        own = [row for name, *row in latencies if name == cell]
        lines += [f"{cell}:", "", *_table(LATENCY_COLUMNS[1:], own), ""]
    return lines


def _by_cell(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    cells: dict[str, dict[str, Row]] = {}
    for row in rows:
        cells.setdefault(row.cell, {})[row.quantity] = row
    return cells


def _compared(row: Row) -> tuple[str, str, str]:
    engine, simulated = (
        "" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
        for value in (row.engine, row.simulated)
    )
    return engine, simulated, _percent(row)


def _percent(row: Row) -> str:
    # what is an error by itself has no sign
    percent = f"{row.percent:.1f}" if row.engine is None else f"{row.percent:+.1f}"
    return percent + (" !" if row.verdict == "outside" else "")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    head = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    return head + [f"| {' | '.join(row)} |" for row in rows]


def _panels(measured: Measured) -> dict[str, object]:
    return {
        name: {
            label: [
                {
                    "x": x,
                    "cell": asdict(pair.cell),
                    "commit": pair.engine.machine.get("commit"),
                    **{
                        side: asdict(run.result) | {"sustained_per_s": run.sustained_per_s}
                        for side, run in zip(("engine", "simulated"), both(pair), strict=True)
                    },
                }
                for x, pair in measured.pairs(name, label)
            ]
            for label in measured.labels(name)
        }
        for name in measured.panels
    }


def _cards(table: StepTable) -> list[str]:
    cards = table.machine.get("cards")
    found = [str(card) for card in cards] if isinstance(cards, list) else []
    return found[:1] or [str(table.machine["cpu"])]
