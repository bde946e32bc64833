import json
from dataclasses import replace

import pytest

from app.command.__main__ import main
from app.command.client.metrics import read_snapshot
from app.command.client.top import panel
from tests.app.command.client.fake_server import METRICS, FakeServer


def test_each_look_is_a_line_in_a_pipe(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["top", "--url", server.url, "--every", "0", "--count", "2"]
    assert main(words) == 0
    assert (
        capsys.readouterr().out.splitlines()
        == ["0.0 req/s, 0 tok/s, 4 running, 2 waiting, KV 50%"] * 2
    )
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["running"] == 4


def test_who_may_not_see_metrics_is_told_what_to_do(
    server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.operator_key = "secret"
    assert main(["top", "--url", server.url, "--count", "1"]) == 1
    assert "operator_keys_file" in capsys.readouterr().err


def test_a_panel_has_a_bar_for_each_use_of_the_cache() -> None:
    now = replace(read_snapshot(METRICS), missing=1)
    rows = panel(now, now, 2.0)
    assert "1 replicas did not answer" in rows[1]
    assert rows[3].endswith("█" * 10)
    assert rows[4].count("█") == 30
