import argparse
from dataclasses import replace
from pathlib import Path

import pytest

from load_tests.__main__ import main
from load_tests.bench.neighbours.command import Row, _breaks
from tests.load_tests import own_process

GOOD = Row(
    name="a",
    status="400",
    answer_s=1.0,
    answer_bytes=7,
    live_p99_ms=100.0,
    gap_ms=900.0,
    num_streams=3,
    faults=(),
    grown_mib=64.0,
    total_mib=100.0,
)
BOUNDS = argparse.Namespace(live_ms=100.0, grown_mib=64.0)


def test_a_bound_is_kept_up_to_it() -> None:
    assert not _breaks(GOOD, BOUNDS)
    assert _breaks(replace(GOOD, live_p99_ms=101.0), BOUNDS)
    assert _breaks(replace(GOOD, grown_mib=65.0), BOUNDS)
    assert _breaks(replace(GOOD, faults=("cut off",)), BOUNDS)


def test_a_name_that_no_request_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["neighbours", "--only", "no such request"])
    assert raised.value.code == 2
    assert "no such request" in capsys.readouterr().err


@pytest.mark.ray
@pytest.mark.slow
def test_the_real_server_is_watched(tmp_path: Path) -> None:
    words = ["neighbours", "--only", "^content parts|^an id of", "--streams", "1"]
    bounds = ["--live-ms", "60000", "--grown-mib", "1000", "--output", str(tmp_path)]
    done = own_process.run(*words, *bounds)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 requests, 0 broke a bound" in done.stdout
