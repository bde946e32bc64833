"""Tables and files of the command `http`."""

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TextIO

from load_tests.http import plots
from load_tests.http.client import Record
from load_tests.http.metrics import LoadFigures
from load_tests.http.session import CaseResult, LoadSettings
from load_tests.report import Report, print_table
from load_tests.traffic.latencies import Summary
from load_tests.traffic.schedule import digest

COLUMNS = (
    *("run", "finished", "failed", "norm lat.\nms/token", "ttft\nms", "tpot\nms", "itl\nms"),
    *("e2e\ns", "output\ntok/s", "good", "lag p99\nms"),
)


def show(results: Sequence[CaseResult]) -> None:
    """Print a row per case, and why a run does not count."""
    rows = [_row(result.case.label, result.figures) for result in results]
    print_table("Load test: p50 / p99, normalized latency mean / p99", COLUMNS, rows)
    for result in results:
        if result.figures.invalid:
            print(f"INVALID {result.case.label}: {result.figures.invalid}")


def write(files: Report, settings: LoadSettings, results: Sequence[CaseResult]) -> None:
    """Write each request's token times as compressed JSONL, the plot, and the figures as JSON."""
    _write_requests(files, results)
    plots.plot(results, files.path(".png"))
    runs = [_header(result) | asdict(result.figures) for result in results]
    document = {"url": settings.url, "seed": settings.seed, "slo": asdict(settings.objective)}
    headline = "; ".join(_line(result.case.label, result.figures) for result in results)
    files.finish(document | {"warmup": settings.warmup, "runs": runs}, headline)
    print("beside it are its plot .png and its requests _requests.jsonl.gz")


def write_requests(file: TextIO, labels: Mapping[str, object], records: Sequence[Record]) -> None:
    """Write a line of JSON for each request: the labels, when it was due, when its tokens came."""
    for record in records:
        line = {
            **labels,
            "due_s": record.request.due_s,
            "input_len": record.request.input_len,
            "output_len": record.request.output_len,
            "sent_s": record.sent_s,
            "error": record.error,
            "chunk_s": [round(at_s, 6) for at_s in record.chunk_s],
            "chunk_tokens": list(record.chunk_tokens),
        }
        file.write(json.dumps(line) + "\n")


def _header(result: CaseResult) -> dict[str, object]:
    case, drain_s = result.case, result.run.drain_s
    return {
        "label": case.label,
        "loop": "open" if case.concurrency is None else "closed",
        "rate_per_s": case.rate_per_s,
        "concurrency": case.concurrency,
        "trace_sha256": digest(case.schedule),
        "drain_policy": (
            "every answer was waited for"
            if drain_s is None
            else f"{drain_s:g} s after the last arrival open requests were cut off as unfinished"
        ),
    }


def _write_requests(files: Report, results: Sequence[CaseResult]) -> None:
    with gzip.open(files.path("_requests.jsonl.gz"), "wt", encoding="utf-8") as file:
        for result in results:
            write_requests(file, {"run": result.case.label}, result.run.records)


def _row(label: str, figures: LoadFigures) -> tuple[str, ...]:
    return (
        label,
        f"{figures.num_finished}/{figures.num_requests}",
        _failures(figures),
        _pair(figures.norm_latency_s, "mean", 1e3),
        _pair(figures.ttft_s, "p50", 1e3),
        _pair(figures.tpot_s, "p50", 1e3),
        _pair(figures.itl_s, "p50", 1e3),
        _pair(figures.e2e_s, "p50", 1.0, ".2f"),
        f"{figures.output_tokens_per_s:.1f}",
        f"{figures.good_share:.0%}",
        _one(figures.client_lag_s, "p99", 1e3),
    )


def _line(label: str, figures: LoadFigures) -> str:
    return (
        f"{label}: {figures.output_tokens_per_s:.1f} tok/s, "
        f"norm latency {_one(figures.norm_latency_s, 'mean', 1e3)} ms/token, "
        f"ttft p99 {_one(figures.ttft_s, 'p99', 1e3)} ms, "
        f"tpot p50 {_one(figures.tpot_s, 'p50', 1e3)} ms, "
        f"good {figures.good_share:.0%}, failed {_failures(figures)}"
        + (", INVALID" if figures.invalid else "")
    )


def _failures(figures: LoadFigures) -> str:
    kinds = {"unfinished": figures.num_unfinished} | figures.errors
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count) or "0"


def _pair(summary: Summary | None, first: str, scale: float, form: str = ".1f") -> str:
    return f"{_one(summary, first, scale, form)} / {_one(summary, 'p99', scale, form)}"


def _one(summary: Summary | None, name: str, scale: float, form: str = ".1f") -> str:
    return "-" if summary is None else format(getattr(summary, name) * scale, form)
