"""What one pass of a race has measured, and how passes are compared."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from load_tests.http.client import Record
from load_tests.http.drive import LoadRun
from load_tests.http.metrics import LoadFigures, measure
from load_tests.traffic.latencies import DEFAULT_OBJECTIVE, Summary

# measure -> its unit, and whether more of it is better
MEASURES: Mapping[str, tuple[str, bool]] = {
    "ttft_p50": ("ms", False),
    "ttft_p99": ("ms", False),
    "tpot_p50": ("ms", False),
    "gap_p50": ("ms", False),
    "gap_p99": ("ms", False),
    "backlog": ("ms", False),
    "tokens_per_s": ("tok/s", True),
    "server_cpu_s": ("s", False),
    "idle_cpu_s": ("s", False),
    "client_cpu_s": ("s", False),
    "cpu_s": ("s", False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One case on one server.

    Attributes:
        ttft_p50, ttft_p99: ms from when a request was due to its first token.
        tpot_p50: ms for each further token, of a request.
        gap_p50, gap_p99: ms between two chunks of a stream.
        backlog: ms, see `backlog_s`.
        tokens_per_s: output, over the whole pass.
        server_cpu_s: CPU seconds of all processes of the server.
        idle_cpu_s: of the other servers of the race, which have nothing to do.
        client_cpu_s: of the client.
        cpu_s: of server and client: what else runs on the machine does not count.
        num_failed: requests without a complete answer.
        invalid: why the client spoiled the pass, or None.
    """

    server: str
    case: str
    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    gap_p50: float
    gap_p99: float
    backlog: float
    tokens_per_s: float
    server_cpu_s: float
    idle_cpu_s: float
    client_cpu_s: float
    cpu_s: float
    num_failed: int
    invalid: str | None

    @property
    def fault(self) -> str | None:
        """Why it does not count."""
        return self.invalid or (f"{self.num_failed} requests failed" if self.num_failed else None)


def pass_of(
    server: str,
    case: str,
    run: LoadRun,
    *,
    server_cpu_s: float,
    client_cpu_s: float,
    idle_cpu_s: float = 0.0,
) -> Pass:
    """Sum up what a client has recorded."""
    figures: LoadFigures = measure(run, DEFAULT_OBJECTIVE)
    return Pass(
        server=server,
        case=case,
        ttft_p50=_ms(figures.ttft_s, "p50"),
        ttft_p99=_ms(figures.ttft_s, "p99"),
        tpot_p50=_ms(figures.tpot_s, "p50"),
        gap_p50=_ms(figures.chunk_gap_s, "p50"),
        gap_p99=_ms(figures.chunk_gap_s, "p99"),
        backlog=1e3 * backlog_s(run.records),
        tokens_per_s=figures.output_tokens_per_s,
        server_cpu_s=server_cpu_s,
        idle_cpu_s=idle_cpu_s,
        client_cpu_s=client_cpu_s,
        cpu_s=server_cpu_s + client_cpu_s,
        num_failed=figures.num_requests - figures.num_finished,
        invalid=figures.invalid,
    )


def backlog_s(records: Sequence[Record]) -> float:
    """The longest that tokens of a stream which were there already can have waited to be sent.

    Tokens of one chunk were made one after the other, each in the time that the stream's usual
    token takes: where a chunk brings n, the first of them is n - 1 of these old. A pause of the
    engine itself, for a long prompt, does not count.
    """
    longest_s = 0.0
    for record in records:
        gaps_s = [after - before for before, after in pairwise(record.chunk_s)]
        if not gaps_s or record.error is not None:
            continue
        counts = record.chunk_tokens[1:]
        token_s = statistics.median(gap / n for gap, n in zip(gaps_s, counts, strict=True))
        waited_s = [min(gap, n * token_s) for gap, n in zip(gaps_s, counts, strict=True)]
        first_s = record.chunk_tokens[0] * token_s
        longest_s = max(longest_s, max(first_s, *waited_s) - token_s)
    return longest_s


def compare(
    passes: Sequence[Pass], names: Sequence[str], beside: str | None = None
) -> Iterator[tuple[str, ...]]:
    """Case, measure, the median of each server, and the first one's over the second one's.

    Args:
        beside: what else was measured, shown in a last column.
    """
    for case in dict.fromkeys(one.case for one in passes):
        for name, (unit, is_more_better) in MEASURES.items():
            values = [_median(passes, case, server, name) for server in names]
            title = f"{name} ({unit}, {'more' if is_more_better else 'less'} is better)"
            row = case, title, *map(_shown, values), _ratio(*values)
            yield row if beside is None else (*row, _shown(_median(passes, case, beside, name)))


def _median(passes: Sequence[Pass], case: str, server: str, name: str) -> float | None:
    chosen = [one for one in passes if (one.case, one.server) == (case, server)]
    values: list[float] = [getattr(one, name) for one in chosen]
    return statistics.median(values) if values else None


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _ratio(first: float | None, second: float | None) -> str:
    return f"{first / second:.2f} x" if first is not None and second else "-"


def _ms(summary: Summary | None, name: str) -> float:
    return 0.0 if summary is None else 1e3 * float(getattr(summary, name))
