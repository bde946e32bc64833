"""Starts systems one after the other, each with the whole machine to itself."""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from load_tests import ROOT
from load_tests.bench.peers.measures import Beam, Knobs, Measure, Online, Order
from load_tests.bench.peers.system import MeasuredFigures

# each in a process of its own, and with the packages of its own
MODULES = {"pagoda": "load_tests.bench.peers.pagoda", "vllm": "load_tests.bench.peers.vllm_peer"}
_TAIL_LINES = 30
# a system's own processes may fail first, with the cause far above the last lines
_FAILURE = re.compile(r"Traceback|\b(ERROR|CRITICAL)\b|\b\w+(Error|Exception): ")
_NAMED_FAILURE = re.compile(r"\b\w+(Error|Exception): ")
_HEAD_LINES, _MOST_NAMED = 6, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemTurn:
    """One system's figures of all measures, in their order; empty where its process failed.

    Attributes:
        facts: what the system reports of itself, from its first process.
        errors: of failed processes the first lines that name a failure, and the last ones.
    """

    system: str
    facts: dict[str, Any]
    figures: tuple[MeasuredFigures, ...]
    errors: tuple[str, ...]


def take_turn(
    system: str, knobs: Knobs, measures: Sequence[Measure], log: Path | None = None
) -> SystemTurn:
    """Run all measures on one system; searches and arrivals in processes of their own.

    Args:
        log: gets all that failed processes printed, and is not written if none failed.
    """
    facts: dict[str, Any] = {}
    figures: list[MeasuredFigures] = []
    errors = []
    for _, measured in groupby(measures, key=_process_of):
        group = tuple(measured)
        lines, error = _run(MODULES[system], Order(knobs=knobs, measures=group), log)
        facts = facts or (lines[0]["facts"] if lines else {})
        done: list[MeasuredFigures] = [line["figures"] for line in lines[1:]]
        figures += done + [{}] * (len(group) - len(done))
        errors += [error] if error else []
    return SystemTurn(system=system, facts=facts, figures=tuple(figures), errors=tuple(errors))


def _process_of(measure: Measure) -> str:
    """A peer may search and serve with other settings than it generates with."""
    return {Beam: "search", Online: "serve"}.get(type(measure), "generate")


def _run(module: str, order: Order, kept_log: Path | None) -> tuple[list[dict[str, Any]], str]:
    """The lines that a process wrote, and what it printed of a failure."""
    with tempfile.TemporaryDirectory() as name:
        asked, results, log = (Path(name) / file for file in ("order.json", "results.jsonl", "log"))
        order.write(asked)
        results.touch()
        command = [sys.executable, "-m", module, str(asked), str(results)]
        with log.open("w") as output:
            done = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, check=False, cwd=ROOT
            )
        lines = [json.loads(line) for line in results.read_text().splitlines()]
        if not done.returncode:
            return lines, ""
        printed = log.read_text(errors="replace")
    error = "\n".join([f"{module} failed with {done.returncode}:", *telling(printed.splitlines())])
    if kept_log is not None:
        with kept_log.open("a") as file:
            file.write(printed)
        error += f"\nall that it printed: {kept_log}"
    return lines, error


def telling(printed: Sequence[str]) -> list[str]:
    """The lines of a log that say why a process failed: the first of a failure, and the last."""
    end = max(0, len(printed) - _TAIL_LINES)
    places = [place for place in range(end) if _FAILURE.search(printed[place])]
    if not places:
        return list(printed[end:])
    named = [place for place in places if _NAMED_FAILURE.search(printed[place])][:_MOST_NAMED]
    head = range(places[0], min(places[0] + _HEAD_LINES, end))
    shown = sorted({*head, *named})
    return [*(printed[place] for place in shown), "...", *printed[end:]]
