"""Starts sides one after the other, each with the whole machine to itself."""

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
from load_tests.bench.peers.measures import Beam, Job, Knobs, Measure, Online
from load_tests.bench.peers.system import Figures
from load_tests.card import Ceilings

MODULES = {"pagoda": "load_tests.bench.peers.pagoda", "vllm": "load_tests.bench.peers.vllm_peer"}
_TAIL_LINES = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One side's figures of all measures, in their order; empty where its process failed.

    Attributes:
        facts: what the side says of itself, from its first process.
        errors: the end of what failed processes said.
    """

    side: str
    facts: dict[str, Any]
    figures: tuple[Figures, ...]
    errors: tuple[str, ...]


def take_turn(side: str, knobs: Knobs, measures: Sequence[Measure]) -> Turn:
    """Run all measures on one side; searches and arrivals in processes of their own."""
    facts: dict[str, Any] = {}
    figures: list[Figures] = []
    errors = []
    for _, measured in groupby(measures, key=_process_of):
        group = tuple(measured)
        lines, error = _run(MODULES[side], Job(knobs=knobs, measures=group))
        facts = facts or (lines[0]["facts"] if lines else {})
        done: list[Figures] = [line["figures"] for line in lines[1:]]
        figures += done + [{}] * (len(group) - len(done))
        errors += [error] if error else []
    return Turn(side=side, facts=facts, figures=tuple(figures), errors=tuple(errors))


def _process_of(measure: Measure) -> str:
    """A peer may search and serve with other settings than it generates with."""
    return {Beam: "search", Online: "serve"}.get(type(measure), "generate")


def find_ceilings() -> dict[str, Ceilings]:
    """The card by its datasheet, if it is known, and as measured."""
    command = [sys.executable, "-m", "load_tests.bench.peers.ceilings"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: Ceilings(**rates) for name, rates in sorted(found.items())}


def _run(module: str, job: Job) -> tuple[list[dict[str, Any]], str]:
    """The lines that a process wrote, and the end of what it said if it failed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job.write(folder / "job.json")
        (folder / "results.jsonl").touch()
        files = [str(folder / "job.json"), str(folder / "results.jsonl")]
        command = [sys.executable, "-m", module, *files]
        with (folder / "log").open("w") as log:
            done = subprocess.run(
                command, stdout=log, stderr=subprocess.STDOUT, check=False, cwd=ROOT
            )
        said = (folder / "log").read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
        error = f"{module} failed with {done.returncode}:"
        return lines, "\n".join([error, *said]) if done.returncode else ""
