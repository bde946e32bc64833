"""What a runner has found, and the JSON file that a report can be made from at any time."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from load_tests.paper.experiments.cells import Cell, CellResult
from load_tests.paper.experiments.opt_models import OptModel, RecoveryTimes
from load_tests.paper.experiments.panels import CurvePoints, Panel
from load_tests.report import write_json

Runner = Literal["engine", "simulated"]
# quantities in which the simulator is compared with the engine, beside latencies
STEP_P50, STEP_P90 = "time of a step, error p50", "time of a step, error p90"
BATCH, BATCH_OVER_TIME = "sequences in the batch", "the same over time, mean distance"
RATE = "rate sustained, req/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """By how much the simulator differs from the engine in one quantity of a cell.

    Attributes:
        cell: for reading.
        engine, simulated: None where the quantity is a difference by itself.
        percent: between them.
        most_percent: it may be; None where nothing is promised.
    """

    cell: str
    quantity: str
    engine: float | None = None
    simulated: float | None = None
    percent: float
    most_percent: float | None = None

    @property
    def verdict(self) -> str:
        """Whether the promise is kept; empty without one."""
        if self.most_percent is None:
            return ""
        return "inside" if abs(self.percent) <= self.most_percent else "outside"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOverTime:
    """Mean batches of a cell in spans of equal length, until `end_s`."""

    cell: str
    end_s: float
    engine: Sequence[float]
    simulated: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All that was found.

    Attributes:
        runners: that ran each cell; the first one's numbers are judged.
        results: of each cell, in the order of `runners`.
        table_1, recoveries: models and figure 19a; empty where they were not asked for.
        deviations, batches: of the simulator from the engine; empty where only one ran.
        facts: about the run, for reading: scale, machine, model and the like.
        commits: of the program that ran each cell on the engine.
    """

    runners: tuple[Runner, ...]
    panels: Mapping[str, Panel]
    results: Mapping[Cell, tuple[CellResult, ...]]
    table_1: tuple[OptModel, ...] = ()
    recoveries: tuple[RecoveryTimes, ...] = ()
    deviations: tuple[Deviation, ...] = ()
    batches: tuple[BatchOverTime, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    commits: Mapping[Cell, object] = field(default_factory=dict)

    @property
    def is_live(self) -> bool:
        """Whether the engine was measured."""
        return self.runners[0] == "engine"

    @property
    def stem(self) -> str:
        """The report's files without their endings: .json, .md and .html."""
        return "engine" if self.is_live else "figures"

    def points(self, name: str, label: str, runner: int = 0) -> list[tuple[float, float]]:
        """(x, y) of a curve; cells with the same x are averaged."""
        panel = self.panels[name]
        values: dict[float, list[float]] = {}
        for x, cell in panel.curves[label]:
            values.setdefault(x, []).append(float(getattr(self.results[cell][runner], panel.y)))
        return [(x, fmean(found)) for x, found in values.items()]

    def means(self, name: str, label: str, field: str) -> list[float]:
        """Mean of a field over all cells of a curve, for each runner."""
        results = [self.results[cell] for _, cell in self.panels[name].curves[label]]
        return [fmean(getattr(each, field) for each in own) for own in zip(*results, strict=True)]


def write_findings(path: Path, findings: Findings, checks: Sequence[Mapping[str, str]]) -> None:
    """Write everything as JSON, with the checks for reading without this code."""
    document = {
        **findings.facts,
        "runners": findings.runners,
        "table_1": [asdict(row) for row in findings.table_1],
        "figure_19a": [asdict(row) for row in findings.recoveries],
        "panels": {
            name: {
                "title": panel.title,
                "y": panel.y,
                "curves": {
                    label: [_point(findings, x, cell) for x, cell in points]
                    for label, points in panel.curves.items()
                },
            }
            for name, panel in findings.panels.items()
        },
        "checks": checks,
        "validation": [asdict(row) for row in findings.deviations],
        "batches": [asdict(row) for row in findings.batches],
    }
    write_json(path, document)


def read_findings(path: Path) -> Findings:
    """Read what `write_findings` has written.

    Raises:
        OSError: if there is no such file.
        ValueError: if it is none of these.
    """
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    try:
        del document["checks"]
        return _read(document)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is no report of figures: {error!r}") from None


def _read(document: dict[str, Any]) -> Findings:
    runners: tuple[Runner, ...] = tuple(document.pop("runners"))
    panels: dict[str, Panel] = {}
    results: dict[Cell, tuple[CellResult, ...]] = {}
    commits: dict[Cell, object] = {}
    for name, found in document.pop("panels").items():
        curves: dict[str, CurvePoints] = {}
        for label, rows in found["curves"].items():
            curves[label] = tuple((row["x"], Cell(**row["cell"])) for row in rows)
            for (_, cell), row in zip(curves[label], rows, strict=True):
                results[cell] = tuple(CellResult(**row[runner]) for runner in runners)
                commits |= {cell: row["commit"]} if "commit" in row else {}
        panels[name] = Panel(name, found["title"], found["y"], curves)
    return Findings(
        runners=runners,
        panels=panels,
        results=results,
        table_1=tuple(OptModel(**row) for row in document.pop("table_1")),
        recoveries=tuple(RecoveryTimes(**row) for row in document.pop("figure_19a")),
        deviations=tuple(Deviation(**row) for row in document.pop("validation")),
        batches=tuple(BatchOverTime(**row) for row in document.pop("batches")),
        facts=document,
        commits=commits,
    )


def _point(findings: Findings, x: float, cell: Cell) -> dict[str, object]:
    results = zip(findings.runners, findings.results[cell], strict=True)
    return {
        "x": x,
        "cell": asdict(cell),
        **({"commit": findings.commits[cell]} if cell in findings.commits else {}),
        **{runner: asdict(result) for runner, result in results},
    }
