"""Tables and files of the command `http`."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import asdict

from load_tests.http import plots
from load_tests.http.metrics import Figures, Summary
from load_tests.http.session import Outcome, Settings
from load_tests.report import Report, print_table
from load_tests.traffic.schedule import Case, digest

COLUMNS = (
    *("run", "finished", "failed", "norm lat.\nms/token", "ttft\nms", "tpot\nms", "itl\nms"),
    *("e2e\ns", "output\ntok/s", "good", "lag p99\nms"),
)


def show(outcomes: Sequence[Outcome]) -> None:
    """Print a row per case, and why a run does not count."""
    rows = [_row(outcome.case.label, outcome.figures) for outcome in outcomes]
    print_table("Load test: p50 / p99, normalized latency mean / p99", COLUMNS, rows)
    for outcome in outcomes:
        if outcome.figures.invalid:
            print(f"INVALID {outcome.case.label}: {outcome.figures.invalid}")


def write(files: Report, settings: Settings, outcomes: Sequence[Outcome]) -> None:
    """Write the figures as JSON, each request's token times as compressed JSONL, and the plot."""
    runs = [_header(o.case, o.run.drain_s) | asdict(o.figures) for o in outcomes]
    path = files.write(
        {"url": settings.url, "seed": settings.seed, "slo": asdict(settings.objective)}
        | {"warmup": settings.warmup, "runs": runs}
    )
    _write_requests(files, outcomes)
    plots.plot(outcomes, files.path(".png"))
    print(f"wrote {path}, its plot .png and its requests _requests.jsonl.gz")


def headline(outcomes: Sequence[Outcome]) -> str:
    """Sum up all cases in one line for the log."""
    return "; ".join(_line(outcome.case.label, outcome.figures) for outcome in outcomes)


def _header(case: Case, drain_s: float | None) -> dict[str, object]:
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


def _write_requests(files: Report, outcomes: Sequence[Outcome]) -> None:
    with gzip.open(files.path("_requests.jsonl.gz"), "wt", encoding="utf-8") as file:
        for outcome in outcomes:
            for record in outcome.run.records:
                line = {
                    "run": outcome.case.label,
                    **asdict(record.request),
                    "sent_s": record.sent_s,
                    "error": record.error,
                    "chunk_s": [round(at_s, 6) for at_s in record.chunk_s],
                    "chunk_tokens": list(record.chunk_tokens),
                }
                file.write(json.dumps(line) + "\n")


def _row(label: str, figures: Figures) -> tuple[str, ...]:
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


def _line(label: str, figures: Figures) -> str:
    return (
        f"{label}: {figures.output_tokens_per_s:.1f} tok/s, "
        f"norm latency {_one(figures.norm_latency_s, 'mean', 1e3)} ms/token, "
        f"ttft p99 {_one(figures.ttft_s, 'p99', 1e3)} ms, "
        f"tpot p50 {_one(figures.tpot_s, 'p50', 1e3)} ms, "
        f"good {figures.good_share:.0%}, failed {_failures(figures)}"
        + (", INVALID" if figures.invalid else "")
    )


def _failures(figures: Figures) -> str:
    kinds = {"unfinished": figures.num_unfinished} | figures.errors
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items() if count) or "0"


def _pair(summary: Summary | None, first: str, scale: float, form: str = ".1f") -> str:
    return f"{_one(summary, first, scale, form)} / {_one(summary, 'p99', scale, form)}"


def _one(summary: Summary | None, name: str, scale: float, form: str = ".1f") -> str:
    return "-" if summary is None else format(getattr(summary, name) * scale, form)
