import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from app.command.own_ray import QUIET, own_ray
from load_tests.faults import trials
from load_tests.faults.command import add_arguments
from load_tests.free_port import free_port
from tests import ROOT

KILLED = ("scheduler", "ingress", "proxy")
# tests/app/serve/test_deployments.py kills these in each run of the tests
KILLED_ELSEWHERE_TOO = ("worker", "engine-replica")
FROZEN = ("worker", "scheduler", "engine-replica")


def test_an_unknown_fault_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert parser.parse_args(["--faults", "none,proxy-killed"]).faults == ["none", "proxy-killed"]
    with pytest.raises(SystemExit):
        parser.parse_args(["--faults", "proxy-kiled"])
    assert "'proxy-kiled' is none of worker-killed" in capsys.readouterr().err


def run_trials(folder: Path, *faults: str) -> None:
    """One trial of each of the faults, of a real server under load; all promises must be kept."""
    path = folder / "trials.jsonl"
    words = [
        "--faults",
        ",".join(faults),
        "--repeats",
        "1",
        "--duration-s",
        "2",
        "--output-len",
        "32",
        "--rate",
        "10",
        "--cases",
        "24",
    ]
    files = ["--trials", str(path), "--output", str(folder), "--port", str(free_port())]
    # paths of Ray's sockets have a limit of 107 characters, too few for pytest's folders
    with tempfile.TemporaryDirectory(prefix="pagoda_") as ray_folder:
        # Serve's controller looks as rarely as it does for users, but at proxies
        looks = QUIET | {"RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "0.5"}
        # a process of its own, since it joins the Ray of the server
        done = subprocess.run(
            [sys.executable, "-m", "load_tests", "faults", *words, *files],
            cwd=ROOT,
            env=own_ray(os.environ | looks | {"RAY_TMPDIR": ray_folder}),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    found = trials.read(path)
    assert sorted(it.fault for it in found) == sorted(faults)
    for trial in found.values():
        # each kind of request is one of eight; what a proxy or an ingress held is cut with it
        assert trial.num_right > (0 if trial.num_cut else 8)
        assert trial.back_s is not None


@pytest.mark.ray
@pytest.mark.timeout(600)
def test_whatever_is_killed_answers_are_right_and_nothing_is_left(tmp_path: Path) -> None:
    run_trials(tmp_path, *(f"{name}-killed" for name in KILLED))


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_whatever_else_is_killed_or_frozen_answers_are_right_and_nothing_is_left(
    tmp_path: Path,
) -> None:
    killed = (f"{name}-killed" for name in KILLED_ELSEWHERE_TOO)
    run_trials(tmp_path, *killed, *(f"{name}-frozen" for name in FROZEN), "raylet-killed")
