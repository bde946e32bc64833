"""Writes what was found: JSON, Markdown and HTML, all the same for the same results."""

import html
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from load_tests.figures.checks import Check, Measured
from load_tests.figures.curves import SUSTAINED_S
from load_tests.figures.definitions import SCALES
from load_tests.figures.notes import NOTES
from load_tests.figures.static import figure_19a, table_1

COLUMNS = ("panel", "quantity", "paper", "ours", "band", "verdict")
TITLES = {
    "1": "Table 1: models and memory",
    "2": "Figure 2: use of the KV memory",
    "12": "Figure 12: basic sampling",
    "13": "Figure 13: requests in the batch",
    "14": "Figure 14: parallel sampling and beam search (Alpaca, OPT-13B)",
    "15": "Figure 15: memory saved by sharing (OPT-13B)",
    "16": "Figure 16: shared prefix (translation, 13B)",
    "17": "Figure 17: chat",
    "18": "Figure 18b: block size",
    "19": "Figure 19: recomputation and swapping",
}
METHOD = (
    "The scheduler and the memory policies are those that serve; only the workers are replaced by "
    "a model of the time that each step takes: the paper's A100s by their data sheet, scaled from "
    "OPT-13B on one card, and two terms for the software of 2023. These two are fitted to the "
    "paged rows of figure 13, so that these are partly calibration, and the beams to figure 15b. "
    "All else is prediction.",
    "Paged is the paper's system. Its baselines are Orca, which reserves memory for the true "
    "length of an output (Oracle), for that rounded up to a power of two (Pow2) or for the longest "
    "(Max), and FasterTransformer. Normalized latency is the mean over all requests of (end - "
    "arrival) / output tokens. A system sustains a rate (requests per second) up to "
    f"{SUSTAINED_S:g} s per token.",
    "The band is where we call a number the same: within 2 % in table 1, 3 points of the shares "
    "and savings in percent, a tenth of the sequences in a batch, about a fifth of a ratio of "
    "rates, or about the paper's range for it. A trend holds or not: yes or no, and the values. "
    "The verdict is open where a curve does not cross the limit, so that its rate is only a bound, "
    "marked > or <. What lies outside is explained below its table, in numbers of the quick scale.",
)
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}td,th{padding:.2rem .6rem;border-bottom:1px solid #ddd;"
    "text-align:left}.outside{color:#b00020;font-weight:600}.inside{color:#1b6e2e}"
    "svg{max-width:100%;height:auto}"
)


def write(
    folder: Path,
    scale: str,
    measured: Measured,
    rows: Sequence[Check],
    plots: Mapping[str, Path],
) -> None:
    """Write figures.json, figures.md and figures.html.

    Args:
        folder: must exist; the plots lie in it.
        plots: figure -> SVG file.
    """
    document = {
        "scale": scale,
        "table_1": [asdict(row) for row in table_1()],
        "figure_19a": [asdict(row) for row in figure_19a()],
        "panels": measured.as_json(),
        "checks": [asdict(row) for row in rows],
    }
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    (folder / "figures.json").write_text(text, encoding="utf-8")
    (folder / "figures.md").write_text(_markdown(scale, rows, plots), encoding="utf-8")
    (folder / "figures.html").write_text(_html(scale, rows, plots), encoding="utf-8")


def summary(rows: Sequence[Check]) -> str:
    """Count the verdicts."""
    counts = {
        word: sum(row.verdict == word for row in rows) for word in ("inside", "outside", "open")
    }
    return ", ".join(f"{count} {word}" for word, count in counts.items())


def _overview(scale: str, rows: Sequence[Check]) -> str:
    ordered = (row for checks in _by_figure(rows).values() for row in checks)
    outside = Counter(row.panel for row in ordered if row.verdict == "outside")
    where = ", ".join(f"{panel} ({count})" for panel, count in outside.items()) or "nothing"
    return (
        f"Scale: {scale}, {SCALES[scale].extent}. Checks: {summary(rows)}. Outside, by panel: "
        f"{where}."
    )


def _by_figure(rows: Sequence[Check]) -> dict[str, list[Check]]:
    figures: dict[str, list[Check]] = {}
    for row in rows:
        figures.setdefault(row.figure, []).append(row)
    return dict(sorted(figures.items(), key=lambda item: int(item[0])))


def _cells(row: Check) -> tuple[str, ...]:
    return tuple(str(getattr(row, column)) for column in COLUMNS)


def _markdown(scale: str, rows: Sequence[Check], plots: Mapping[str, Path]) -> str:
    lines = ["# The paper's figures, repeated", ""]
    lines += [f"{paragraph}\n" for paragraph in (*METHOD, _overview(scale, rows))]
    for figure, checks in _by_figure(rows).items():
        lines += [f"## {TITLES[figure]}", ""]
        if figure in plots:
            lines += [f"![{TITLES[figure]}]({plots[figure].name})", ""]
        lines += [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
        lines += [f"| {' | '.join(_cells(row))} |" for row in checks]
        lines += ["", *(f"{note}\n" for note in _notes(figure))]
    return "\n".join(lines).rstrip() + "\n"


def _html(scale: str, rows: Sequence[Check], plots: Mapping[str, Path]) -> str:
    title = "The paper's figures, repeated"
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f"<style>{STYLE}</style></head><body><h1>{title}</h1>",
        *(f"<p>{html.escape(paragraph)}</p>" for paragraph in (*METHOD, _overview(scale, rows))),
    ]
    for figure, checks in _by_figure(rows).items():
        parts.append(f"<h2>{html.escape(TITLES[figure])}</h2>")
        if figure in plots:
            drawing = plots[figure].read_text(encoding="utf-8")
            parts.append(drawing[drawing.index("<svg") :])
        heads = "".join(f"<th>{column}</th>" for column in COLUMNS)
        parts.append(f"<table><tr>{heads}</tr>{''.join(map(_html_row, checks))}</table>")
        parts += [f"<p>{html.escape(note)}</p>" for note in _notes(figure)]
    return "\n".join(parts) + "\n</body></html>\n"


def _html_row(row: Check) -> str:
    cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in _cells(row)[:-1])
    return f'<tr>{cells}<td class="{row.verdict}">{row.verdict}</td></tr>'


def _notes(figure: str) -> tuple[str, ...]:
    return NOTES.get(figure, ())
