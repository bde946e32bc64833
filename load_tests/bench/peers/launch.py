"""Starts systems one after the other, each with the whole machine to itself."""

import json
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemTurn:
    """One system's figures of all measures, in their order; empty where its process failed.

    Attributes:
        facts: what the system reports of itself, from its first process.
        errors: the last lines that failed processes printed.
    """

    system: str
    facts: dict[str, Any]
    figures: tuple[MeasuredFigures, ...]
    errors: tuple[str, ...]


def take_turn(system: str, knobs: Knobs, measures: Sequence[Measure]) -> SystemTurn:
    """Run all measures on one system; searches and arrivals in processes of their own."""
    facts: dict[str, Any] = {}
    figures: list[MeasuredFigures] = []
    errors = []
    for _, measured in groupby(measures, key=_process_of):
        group = tuple(measured)
        lines, error = _run(MODULES[system], Order(knobs=knobs, measures=group))
        facts = facts or (lines[0]["facts"] if lines else {})
        done: list[MeasuredFigures] = [line["figures"] for line in lines[1:]]
        figures += done + [{}] * (len(group) - len(done))
        errors += [error] if error else []
    return SystemTurn(system=system, facts=facts, figures=tuple(figures), errors=tuple(errors))


def _process_of(measure: Measure) -> str:
    """A peer may search and serve with other settings than it generates with."""
    return {Beam: "search", Online: "serve"}.get(type(measure), "generate")


def _run(module: str, order: Order) -> tuple[list[dict[str, Any]], str]:
    """The lines that a process wrote, and the last ones that it printed if it failed."""
    with tempfile.TemporaryDirectory() as name:
        asked, results, log = (Path(name) / file for file in ("order.json", "results.jsonl", "log"))
        order.write(asked)
        results.touch()
        command = [sys.executable, "-m", module, str(asked), str(results)]
        with log.open("w") as output:
            done = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, check=False, cwd=ROOT
            )
        printed = log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        lines = [json.loads(line) for line in results.read_text().splitlines()]
        error = f"{module} failed with {done.returncode}:"
        return lines, "\n".join([error, *printed]) if done.returncode else ""
