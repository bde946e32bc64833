"""Writes what was found: plots, Markdown and HTML, all the same for the same findings."""

import html
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from load_tests.paper.experiments.scales import DATA, SCALES
from load_tests.paper.findings import (
    BATCH,
    BATCH_OVER_TIME,
    RATE,
    STEP_P50,
    STEP_P90,
    Deviation,
    Findings,
)
from load_tests.paper.reporting.checks import PaperCheck
from load_tests.paper.reporting.curves import SUSTAINED_S
from load_tests.paper.reporting.plots import plot

STEP_COLUMNS = ("cell", "step, % p50", "% p90", "batch", "simulated", "%", "over time, %")
CELL_COLUMNS = (*STEP_COLUMNS, "rate, req/s", "simulated", "%")
LATENCY_COLUMNS = ("latency", "engine", "simulated", "%")
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}td,th{padding:.2rem .6rem;border-bottom:1px solid #ddd;"
    "text-align:left}.outside{color:#b00020;font-weight:600}.inside{color:#1b6e2e}"
    "svg{max-width:100%;height:auto}"
)
# the texts by heading: how numbers were made by the runner that is judged, and notes by figure
TEXTS = {
    heading: text.strip()
    for heading, _, text in (
        part.partition("\n")
        for part in (DATA / "notes.md").read_text(encoding="utf-8").split("# ")[1:]
    )
}
# number -> heading
FIGURES = {re.findall("[0-9]+", title)[0]: title for title in TEXTS if title[:3] in ("Tab", "Fig")}
# what is promised of the simulator, where it was measured
_PROMISES = {
    STEP_P50: "steps within {:g} % at the median",
    BATCH: "batches within {:g} %",
    RATE: "sustained rates within {:g} %",
}
# title, columns, rows
Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]


def write_report(folder: Path, findings: Findings, rows: Sequence[PaperCheck]) -> Path:
    """Write the plots, the Markdown and the HTML.

    Args:
        folder: must exist.

    Returns:
        The HTML.
    """
    drawings = plot(findings, folder)
    tables = {title: (columns, lines) for title, columns, lines in check_tables(findings, rows)}
    title = f"The paper's figures{' on the engine' if findings.is_live else ', repeated'}"
    facts = _facts(findings)
    blocks = [f"# {title}", TEXTS[findings.runners[0]].format(**facts), _overview(findings, rows)]
    for figure, title in FIGURES.items():
        if figure in drawings or title in tables:
            blocks.append(f"## {title}")
            blocks += [f"![{title}]({drawings[figure].name})"] if figure in drawings else []
            blocks += [_markdown(*tables[title])] if title in tables else []
            blocks += [TEXTS[title]] if TEXTS[title] and not findings.is_live else []
    if findings.deviations:
        blocks += ["## The simulator against the engine", TEXTS["validation"].format(**facts)]
        blocks += _validation(findings, folder / "engine_batches.svg")
    page = folder / f"{findings.stem}.html"
    page.write_text(_html(blocks, folder), encoding="utf-8")
    page.with_suffix(".md").write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    return page


def check_tables(findings: Findings, rows: Sequence[PaperCheck]) -> Iterator[Table]:
    """The checks of each figure, with a column for each runner."""
    for figure, title in FIGURES.items():
        own = [row.by_column(findings.runners) for row in rows if row.figure == figure]
        if own:
            yield title, tuple(own[0]), [tuple(row.values()) for row in own]


def validation_table(findings: Findings) -> Table:
    """The promises of each cell, a line for each; what is outside has a mark."""
    lines = [
        (
            cell,
            _percent(own[STEP_P50]),
            _percent(own[STEP_P90]),
            *_compared(own[BATCH]),
            _percent(own[BATCH_OVER_TIME]),
            *(_compared(own[RATE]) if RATE in own else ("", "", "")),
        )
        for cell, own in _by_cell(findings).items()
    ]
    return "Simulator", CELL_COLUMNS, lines


def summary(findings: Findings, rows: Sequence[PaperCheck]) -> str:
    """Count the verdicts."""
    counts = _counts([row.verdict for row in rows])
    if not findings.deviations:
        return counts
    return f"paper: {counts}; simulator: {_counts([row.verdict for row in findings.deviations])}"


def _facts(findings: Findings) -> dict[str, object]:
    """What the texts are filled in with."""
    facts: dict[str, Any] = (
        {**findings.facts} | findings.facts.get("extents", {}) | {"sustained_s": SUSTAINED_S}
    )
    most = {row.quantity: row.most_percent for row in findings.deviations}
    promised = (
        words.format(most[quantity])
        for quantity, words in _PROMISES.items()
        if most.get(quantity) is not None
    )
    facts["promised"] = ", ".join(promised)
    machine = facts.get("machine", {})
    return facts | {"card": next(iter(machine.get("cards") or [machine.get("cpu")]))}


def _overview(findings: Findings, rows: Sequence[PaperCheck]) -> str:
    outside = Counter(row.panel for row in rows if row.verdict == "outside")
    where = ", ".join(f"{panel} ({count})" for panel, count in outside.items()) or "nothing"
    scale = findings.facts["scale"]
    extent = "" if findings.is_live else f", {SCALES[scale].extent}"
    counts = _counts([row.verdict for row in rows])
    return f"Scale: {scale}{extent}. Checks: {counts}. Outside, by panel: {where}."


def _counts(verdicts: Sequence[str]) -> str:
    found = Counter(verdicts)
    return ", ".join(f"{found[word]} {word}" for word in ("inside", "outside", "open"))


def _validation(findings: Findings, batches: Path) -> Iterator[str]:
    if batches.exists():
        yield f"![Batch over time]({batches.name})"
    _, columns, lines = validation_table(findings)
    yield _markdown(columns, lines)
    for cell, own in _by_cell(findings).items():
        others = [row for quantity, row in own.items() if quantity.endswith((", ms", "token"))]
        if others:
            lines = [(row.quantity, *_compared(row)) for row in others]
            yield f"{cell}:"
            yield _markdown(LATENCY_COLUMNS, lines)


def _by_cell(findings: Findings) -> Mapping[str, Mapping[str, Deviation]]:
    cells: dict[str, dict[str, Deviation]] = {}
    for row in findings.deviations:
        cells.setdefault(row.cell, {})[row.quantity] = row
    return cells


def _compared(row: Deviation) -> tuple[str, str, str]:
    engine, simulated = (
        "" if value is None else f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
        for value in (row.engine, row.simulated)
    )
    return engine, simulated, _percent(row)


def _percent(row: Deviation) -> str:
    # what is an error by itself has no sign
    percent = f"{row.percent:.1f}" if row.engine is None else f"{row.percent:+.1f}"
    return percent + (" !" if row.verdict == "outside" else "")


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    return "\n".join(head + [f"| {' | '.join(row)} |" for row in rows])


def _html(blocks: Sequence[str], folder: Path) -> str:
    """The Markdown of these blocks as one page that holds the drawings."""
    title = html.escape(blocks[0].removeprefix("# "))
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    paragraphs = [part for block in blocks for part in block.split("\n\n")]
    body = [_html_of(paragraph, folder) for paragraph in paragraphs]
    return "\n".join([f"{head}<style>{STYLE}</style></head><body>", *body, "</body></html>\n"])


def _html_of(block: str, folder: Path) -> str:
    if block.startswith("#"):
        marks, _, text = block.partition(" ")
        return f"<h{len(marks)}>{html.escape(text)}</h{len(marks)}>"
    if block.startswith("!["):
        drawing = (folder / block[block.rindex("(") + 1 : -1]).read_text(encoding="utf-8")
        return drawing[drawing.index("<svg") :]
    if block.startswith("|"):
        head, _, *rows = (line[2:-2].split(" | ") for line in html.escape(block).split("\n"))
        lines = "".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in rows)
        return f"<table><tr><th>{'</th><th>'.join(head)}</th></tr>{lines}</table>"
    return f"<p>{html.escape(block)}</p>"


def _html_cell(text: str) -> str:
    # verdicts are coloured
    kind = f' class="{text}"' if text in ("inside", "outside") else ""
    return f"<td{kind}>{text}</td>"
