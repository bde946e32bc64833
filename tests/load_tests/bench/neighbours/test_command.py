from pathlib import Path

import pytest

from load_tests.__main__ import main
from tests.load_tests import own_process


def test_a_name_that_no_request_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["neighbours", "--only", "no such request"])
    assert raised.value.code == 2
    assert "no such request" in capsys.readouterr().err


@pytest.mark.ray
@pytest.mark.slow
def test_the_real_server_is_watched(tmp_path: Path) -> None:
    words = [
        "neighbours",
        "--proxy",
        "python",
        "--only",
        "^content parts|^an id of",
        "--streams",
        "1",
    ]
    bounds = ["--live-ms", "60000", "--grown-mib", "1000", "--output", str(tmp_path)]
    done = own_process.run(*words, *bounds)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 requests, 0 broke a bound" in done.stdout
