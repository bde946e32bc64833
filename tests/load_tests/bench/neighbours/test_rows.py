import argparse
from dataclasses import replace

import pytest

from load_tests.bench.neighbours.rows import Row, breaks, line, show
from load_tests.bench.neighbours.server import Spent
from load_tests.bench.neighbours.watch import Window

GOOD = Row(
    name="a",
    status="400",
    answer_s=1.0,
    answer_bytes=7,
    live_p99_ms=100.0,
    gap_ms=900.0,
    num_streams=3,
    faults=(),
    spent=Spent(cpu_s=0.5, queue_s=0.25),
    grown_mib=64.0,
    total_mib=100.0,
)
BOUNDS = argparse.Namespace(live_ms=100.0, grown_mib=64.0)


def test_a_bound_is_kept_up_to_it() -> None:
    assert not breaks(GOOD, BOUNDS)
    assert breaks(replace(GOOD, live_p99_ms=101.0), BOUNDS)
    assert breaks(replace(GOOD, grown_mib=65.0), BOUNDS)
    assert breaks(replace(GOOD, faults=("cut off",)), BOUNDS)


def test_what_a_bare_server_showed_stands_below_the_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    quiet = Window(live_s=[0.018], gaps_s=[0.05, 0.01])
    show("haproxy", quiet, [GOOD, replace(GOOD, name="b", bare_live_p99_ms=31.0)], BOUNDS)
    lines = capsys.readouterr().out.splitlines()
    assert "proxy: haproxy; /live p99 without them: 18 ms" in lines[0]
    assert lines[-1] == "b: /live p99 of a server that only reads the same: 31 ms"


def test_a_request_is_said_in_one_line() -> None:
    assert line(GOOD).startswith("a: 400 after 1.00 s, /live 100 ms, gap 900 ms, CPU 0.50 s")
