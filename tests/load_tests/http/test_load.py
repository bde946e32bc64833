import asyncio
import gzip
import json
from pathlib import Path

import pytest

from load_tests.__main__ import main
from tests.load_tests.fake_server import FakeServer


def command(server: FakeServer, *options: str) -> int:
    async def run() -> int:
        async with server.running() as url:
            return await asyncio.to_thread(main, ["http", "--url", url, *options])

    return asyncio.run(run())


def test_a_sweep_writes_figures_requests_plot_and_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--rate", "40,80", "--requests", "8", "--lengths", "fixed:4:6", "--warmup", "1"]
    status = command(
        FakeServer(fail={9: "status"}), *options, "--output", str(tmp_path), "--log", "--seed", "5"
    )
    (figures,) = (json.loads(path.read_text()) for path in tmp_path.glob("*.json"))
    (requests,) = tmp_path.glob("*_requests.jsonl.gz")
    (plot,) = tmp_path.glob("*.png")
    assert status == int(any(run["invalid"] for run in figures["runs"]))
    assert figures["seed"] == 5
    assert [run["rate_per_s"] for run in figures["runs"]] == [40, 80]
    assert all(len(run["trace_sha256"]) == 64 for run in figures["runs"])
    assert all(run["num_finished"] == 8 for run in figures["runs"])
    assert "cut off as unfinished" in figures["runs"][0]["drain_policy"]
    with gzip.open(requests, "rt") as file:
        lines = [json.loads(line) for line in file]
    assert len(lines) == 16
    assert all(sum(line["chunk_tokens"]) == 6 for line in lines)
    assert plot.stat().st_size > 10_000
    assert "40 req/s" in (tmp_path / "LOG.md").read_text()
    assert "80 req/s" in capsys.readouterr().out


def test_a_closed_loop_is_called_one(tmp_path: Path) -> None:
    command(
        FakeServer(),
        *("--concurrency", "2", "--lengths", "fixed:2:2", "--output", str(tmp_path)),
    )
    (figures,) = (json.loads(path.read_text()) for path in tmp_path.glob("*.json"))
    assert figures["runs"][0]["loop"] == "closed"
    assert figures["runs"][0]["drain_policy"] == "every answer was waited for"


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--rate", "1", "--trace", "x.csv"],
        ["--rate", "-1"],
        ["--rate", "x"],
        ["--concurrency", "0"],
        ["--rate", "1", "--lengths", "fixed:0:1"],
        ["--trace", "missing.csv"],
        ["--rate", "1", "--vocab-size", "0"],
    ],
)
def test_wrong_use_ends_with_status_2(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["http", *options])
    assert raised.value.code == 2
    error = capsys.readouterr().err
    assert "error:" in error
    assert "no server answers" not in error
