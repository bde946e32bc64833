from array import array
from dataclasses import replace

import pytest

from load_tests.bench.serving.passes import MEASURES, Pass, backlog_s, compare
from load_tests.http.client import Record
from load_tests.traffic.schedule import TimedRequest

PASS = Pass(
    server="a",
    case="15 req/s",
    ttft_p50=10.0,
    ttft_p99=30.0,
    tpot_p50=5.0,
    gap_p50=4.5,
    gap_p99=20.0,
    backlog=3.0,
    tokens_per_s=400.0,
    server_cpu_s=2.0,
    idle_cpu_s=0.5,
    client_cpu_s=1.0,
    cpu_s=3.0,
    num_failed=0,
    invalid=None,
)


def test_medians_of_the_passes_of_each_server_are_compared() -> None:
    passes = [replace(PASS, ttft_p99=ms) for ms in (30.0, 90.0, 40.0)]
    passes += [replace(PASS, server="b", ttft_p99=ms) for ms in (80.0, 1.0, 100.0)]
    rows = {row[1].split()[0]: row for row in compare(passes, ["a", "b"])}
    assert list(rows) == list(MEASURES)
    assert rows["ttft_p99"][2:] == ("40.0", "80.0", "0.50 x")
    assert rows["tokens_per_s"][2:] == ("400.0", "400.0", "1.00 x")


def test_cases_are_compared_apart() -> None:
    other = replace(PASS, case="256 in flight", tpot_p50=7.0)
    passes = [PASS, other, replace(PASS, server="b"), replace(other, server="b", tpot_p50=14.0)]
    tpots = [row for row in compare(passes, ["a", "b"]) if row[1].startswith("tpot")]
    assert [(row[0], row[-1]) for row in tpots] == [
        ("15 req/s", "1.00 x"),
        ("256 in flight", "0.50 x"),
    ]


def test_what_has_not_been_measured_yet_has_a_dash() -> None:
    passes = [PASS, replace(PASS, case="later"), replace(PASS, server="b")]
    passes.append(replace(PASS, server="beside", tpot_p50=4.5))
    rows = [row for row in compare(passes, ["a", "b"], "beside") if row[1].startswith("tpot")]
    assert [row[2:] for row in rows] == [
        ("5.0", "5.0", "1.00 x", "4.5"),
        ("5.0", "-", "-", "-"),
    ]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, None),
        ({"num_failed": 2}, "2 requests failed"),
        ({"invalid": "client lag"}, "client lag"),
    ],
)
def test_a_pass_counts_if_all_were_answered_and_the_client_kept_up(
    changes: dict[str, object], fault: str | None
) -> None:
    assert replace(PASS, **changes).fault == fault  # type: ignore[arg-type]


def record(*chunks: tuple[float, int], error: str | None = None) -> Record:
    return Record(
        request=TimedRequest(due_s=0.0, input_len=4, output_len=sum(n for _, n in chunks)),
        sent_s=0.0,
        chunk_s=array("d", [at for at, _ in chunks]),
        chunk_tokens=array("i", [n for _, n in chunks]),
        error=error,
    )


@pytest.mark.parametrize(
    ("chunks", "seconds"),
    [
        # each token by itself
        ([(1.0, 1), (1.1, 1), (1.2, 1)], 0.0),
        # the engine paused, then went on as before
        ([(1.0, 1), (1.1, 1), (1.9, 1), (2.0, 1)], 0.0),
        # six tokens at once, the first of which was there 0.5 s before
        ([(1.0, 1), (1.1, 1), (1.7, 6), (1.8, 1)], 0.5),
        # what came at once had been made in less time than its number says
        ([(1.0, 1), (1.1, 1), (1.4, 6), (1.5, 1), (1.6, 1)], 0.2),
        # the first chunk
        ([(1.0, 4), (1.1, 1), (1.2, 1)], 0.3),
        ([(1.0, 1)], 0.0),
    ],
)
def test_a_backlog_is_how_long_tokens_of_a_chunk_waited_for_each_other(
    chunks: list[tuple[float, int]], seconds: float
) -> None:
    assert backlog_s([record((0.0, 1), (0.1, 1)), record(*chunks)]) == pytest.approx(seconds)


def test_what_failed_has_no_backlog() -> None:
    assert backlog_s([record((1.0, 1), (1.1, 1), (1.7, 6), error="unfinished")]) == 0.0
