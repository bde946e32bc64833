"""What was found: tables, JSON and plots, the same for the same trace, settings and seed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.config import EngineConfig
from load_tests.report import print_table, write_json
from load_tests.traffic.latencies import Summary
from load_tests.whatif.replays import Experiment, Figures, ReplayOutcome
from load_tests.whatif.settings import Changes
from load_tests.whatif.slo import Sizing
from load_tests.whatif.tornado import Bar, e2e_p99_s, ranked

# of the engine's settings, those that bear on a replay
SETTINGS = (
    "block_size", "num_blocks", "swap_bytes", "max_num_seqs", "max_num_batched_tokens",
    "lone_prompt_tokens", "max_model_len", "max_num_waiting", "memory_policy", "preemption",
    "watermark", "growth_blocks", "max_overtakes", "prompt_share", "fills_steps", "prefix_cache",
    "pinned_prefix_share", "inter_token_latency_s", "run_ahead", "tensor_parallel_size",
)  # fmt: skip
LATENCIES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Everything that was asked and found.

    Attributes:
        source: names of the trace's files, or what it was drawn from.
        changes: of the configuration's options.
        settings, outcomes: by variant: as configured, and with the changes, if any.
        share: of the requests that are to be good.
        sizings: by variant, where a service level was asked for.
        bars: of the last variant's tornado; may be empty.
    """

    experiment: Experiment
    source: Sequence[str]
    changes: Changes
    settings: Mapping[str, EngineConfig]
    outcomes: Mapping[str, ReplayOutcome]
    share: float
    sizings: Mapping[str, Sizing]
    bars: Sequence[Bar]

    @property
    def base(self) -> Figures:
        """What the tornado turns around."""
        return list(self.outcomes.values())[-1].figures


def show(answer: Answer) -> None:
    """Print the tables."""
    trace = answer.experiment.trace
    print(
        f"{len(trace.requests)} requests in {trace.duration_s:.1f} s from "
        f"{', '.join(answer.source)}; skipped without output: {trace.num_skipped}, lost by the "
        f"recorder: {trace.num_lost}"
    )
    speed = answer.experiment.speed(list(answer.settings.values())[-1])
    print(f"step times: {speed.name}")
    for note in speed.notes:
        print(f"note: {note}")
    columns = ("", *answer.outcomes)
    figures = [outcome.figures for outcome in answer.outcomes.values()]
    print_table(
        f"{answer.experiment.num_replicas} replicas",
        columns,
        rows(figures, has_level=bool(answer.sizings)),
    )
    if recorded := trace.recorded():
        latencies = [(LATENCIES[name], _percentiles(found)) for name, found in recorded.items()]
        print_table("As recorded", ("", "p50 / p90 / p99 (s)"), latencies)
    for name, sizing in answer.sizings.items():
        print(f"{name}: {_in_words(sizing, answer.share)}")
    if answer.bars:
        _show_tornado(answer)


def rows(figures: Sequence[Figures], *, has_level: bool) -> Iterator[tuple[str, ...]]:
    """Rows of the table that compares variants."""

    def row(name: str, form: str, field: str) -> tuple[str, ...]:
        return name, *(format(getattr(each, field), form) for each in figures)

    yield row("requests refused", "d", "num_refused")
    yield row("requests per second", ".3g", "requests_per_s")
    yield row("output tokens per second", ".4g", "output_tokens_per_s")
    for field, name in LATENCIES.items():
        summaries: list[Summary | None] = [getattr(each, field) for each in figures]
        yield f"{name} p50 / p90 / p99 (s)", *(_percentiles(summary) for summary in summaries)
    yield row("preempted, recomputed", "d", "num_recomputed")
    yield row("preempted, swapped out", "d", "num_swapped_out")
    yield row("sequences in a step", ".1f", "mean_batch")
    yield row("time with steps", ".1%", "busy_share")
    yield row("prompt tokens found in the cache (%)", ".1f", "cached_share")
    for use in figures[0].uses:
        yield f"KV slots {use} (%)", *(f"{each.uses[use]:.1f}" for each in figures)
    yield row("KV slots saved by sharing (%)", ".1f", "shared_saving")
    if has_level:
        yield row("requests within the level", ".1%", "good_share")


def write(folder: Path, answer: Answer) -> Path:
    """Write whatif.json and the plots, and return the folder; it is created if missing."""
    # matplotlib takes a second to import
    from load_tests.whatif.plots import plot_latencies, plot_tornado

    write_json(folder / "whatif.json", as_json(answer))
    curves = {name: outcome.curves for name, outcome in answer.outcomes.items()}
    plot_latencies(folder / "latencies.svg", curves)
    if answer.bars:
        base_s = e2e_p99_s(answer.base) or 0.0
        plot_tornado(folder / "tornado.svg", ranked(answer.bars, answer.base), base_s)
    return folder


def as_json(answer: Answer) -> dict[str, object]:
    """Give everything as JSON values; no machine and no date, so that equal runs are equal."""
    experiment, trace = answer.experiment, answer.experiment.trace
    speed = experiment.speed(list(answer.settings.values())[-1])
    return {
        "trace": {
            "source": list(answer.source),
            "sha256": trace.digest(),
            "num_requests": len(trace.requests),
            "duration_s": trace.duration_s,
            "num_skipped": trace.num_skipped,
            "num_lost": trace.num_lost,
            "recorded": {name: asdict(found) for name, found in trace.recorded().items()},
        },
        "seed": experiment.seed,
        "num_replicas": experiment.num_replicas,
        "step_times": speed.name,
        "notes": list(speed.notes),
        "changes": dict(answer.changes),
        "settings": {
            name: {field: config.options()[field] for field in SETTINGS}
            for name, config in answer.settings.items()
        },
        "figures": {name: asdict(outcome.figures) for name, outcome in answer.outcomes.items()},
        "percentiles": {name: outcome.curves for name, outcome in answer.outcomes.items()},
        "slo": _slo_as_json(answer),
        "tornado": [
            {
                "knob": bar.knob.name,
                "low": bar.knob.low,
                "high": bar.knob.high,
                "e2e_p99_s": bar.e2e_p99_s,
                "output_tokens_per_s": bar.output_tokens_per_s,
                "problems": bar.problems,
            }
            for bar in answer.bars
        ],
    }


def _slo_as_json(answer: Answer) -> dict[str, object] | None:
    if not answer.sizings:
        return None
    sizings = {name: asdict(sizing) for name, sizing in answer.sizings.items()}
    return {**answer.experiment.objective.limits(), "share": answer.share, "replicas": sizings}


def _percentiles(summary: Summary | None) -> str:
    if summary is None:
        return "-"
    return " / ".join(f"{value:.3g}" for value in (summary.p50, summary.p90, summary.p99))


def _in_words(sizing: Sizing, share: float) -> str:
    tried = ", ".join(f"{count}: {good:.1%}" for count, good in sizing.good_shares.items())
    if sizing.num_replicas is None:
        return f"{max(sizing.good_shares)} replicas do not serve {share:.4g} well ({tried})"
    return f"{sizing.num_replicas} replicas serve {share:.4g} of the requests well ({tried})"


def _show_tornado(answer: Answer) -> None:
    base = answer.base
    base_s = e2e_p99_s(base) or 0.0

    def change(value: float | None, of: float) -> str:
        return "-" if value is None or not of else f"{100 * (value / of - 1):+.1f} %"

    table = [
        (
            bar.knob.name,
            f"{bar.knob.low} / {bar.knob.high}",
            *(change(value, base_s) for value in bar.e2e_p99_s),
            *(change(value, base.output_tokens_per_s) for value in bar.output_tokens_per_s),
        )
        for bar in ranked(answer.bars, base)
    ]
    title = f"From E2E p99 {base_s:.3g} s and {base.output_tokens_per_s:.4g} tokens/s"
    columns = ("knob", "low / high", "p99, low", "p99, high", "tokens/s, low", "tokens/s, high")
    print_table(title, columns, table)
    for bar in answer.bars:
        for problem in bar.problems:
            print(f"{bar.knob.name}: {problem}")
