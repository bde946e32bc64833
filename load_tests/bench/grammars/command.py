"""Command `grammars`: compile the schemas of a public suite, and follow its texts.

The suite is `maskbench/data` of https://github.com/guidance-ai/jsonschemabench (arXiv:2501.10868):
files with a schema, and texts that do or do not match it.
"""

import argparse
import json
import random
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from load_tests import report
from load_tests.bench.grammars.libraries import LIBRARIES
from load_tests.options import at_least

EXAMPLE = "python -m load_tests grammars --suite data --tokenizer tokenizer.json --end-id 2"

# a schema that takes longer counts as one that kills the process
_TIMEOUT_S = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `grammars`."""
    parser.add_argument("--suite", type=Path, required=True, help="folder of the suite's files")
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json of a model")
    parser.add_argument("--end-id", type=at_least(0), required=True, help="of the same model")
    parser.add_argument("--schemas", type=at_least(1), default=1000, help="drawn from the suite")
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=list(LIBRARIES))
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Compare the libraries on the same schemas."""
    paths = sorted(args.suite.glob("*.json"))
    if not paths:
        raise SystemExit(f"{args.suite} has no .json files; see --suite")
    drawn = random.Random(0).sample(paths, min(args.schemas, len(paths)))
    files = report.start(args, "grammars")
    figures = {
        name: summarise(look_at_all(name, args.tokenizer, args.end_id, drawn))
        for name in args.libraries
    }
    columns = ("library", *next(iter(figures.values())))
    rows = [
        (name, *(f"{value:.4g}" for value in found.values())) for name, found in figures.items()
    ]
    report.print_table(f"{len(drawn)} schemas of {args.suite.name}", columns, rows)
    summary = ", ".join(
        f"{name} compiled {found['compiled']:.4g}, all right {found['all right']:.4g}, wrote "
        f"{found['texts written']:.0f} with {found['of them wrong']:.0f} wrong"
        for name, found in figures.items()
    )
    files.finish(dict(figures), summary)
    return 0


def look_at_all(
    library: str, tokenizer: Path, end_id: int, paths: Sequence[Path]
) -> list[dict[str, Any] | None]:
    """What a library makes of each file; None where its process died or took too long."""
    found: list[dict[str, Any] | None] = []
    while len(found) < len(paths):
        found += _until_death(library, tokenizer, end_id, paths[len(found) :])
    return found


def _until_death(
    library: str, tokenizer: Path, end_id: int, paths: Sequence[Path]
) -> list[dict[str, Any] | None]:
    module = "load_tests.bench.grammars.libraries"
    command = [sys.executable, "-m", module, library, str(tokenizer), str(end_id)]
    found: list[dict[str, Any] | None] = []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for path in paths:
            watchdog = threading.Timer(_TIMEOUT_S, process.kill)
            watchdog.start()
            process.stdin.write(f"{path}\n")
            process.stdin.flush()
            line = process.stdout.readline()
            watchdog.cancel()
            found.append(json.loads(line) if line else None)
            if not line:
                break
    return found


def summarise(found: Sequence[dict[str, Any] | None]) -> dict[str, float]:
    """Shares of all schemas, texts, and times of those that were compiled, in ms and us."""
    alive = [one for one in found if one is not None]
    compiled = [one for one in alive if "error" not in one]
    compile_ms = [1e3 * one["compile_s"] for one in compiled] or [np.nan]
    mask_us = [1e6 * mask_s for one in compiled for mask_s in one["mask_s"]] or [np.nan]
    wrong = {
        name: sum(one[f"num_{name}"] > 0 for one in compiled) for name in ("refused", "let_through")
    }
    right = sum(one["num_refused"] + one["num_let_through"] == 0 for one in compiled)
    return {
        "compiled": len(compiled) / len(found),
        "died or > 30 s": (len(found) - len(alive)) / len(found),
        "valid text refused": wrong["refused"] / len(found),
        "invalid let through": wrong["let_through"] / len(found),
        "all right": right / len(found),
        "texts written": float(sum(one["num_written"] for one in compiled)),
        "of them wrong": float(sum(one["num_mismatched"] for one in compiled)),
        "compile ms p50": float(np.median(compile_ms)),
        "p99": float(np.quantile(compile_ms, 0.99)),
        "most": float(np.max(compile_ms)),
        "mask us p50": float(np.median(mask_us)),
        "mask p99": float(np.quantile(mask_us, 0.99)),
        "mask p99.9": float(np.quantile(mask_us, 0.999)),
        "mask most": float(np.max(mask_us)),
    }
