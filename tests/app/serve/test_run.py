"""The end of a start that fails: by a stand-in for Serve, and with the real one (slow)."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray import serve
from ray.serve import scripts
from ray.serve.schema import ApplicationStatus

from app.serve import run
from load_tests.free_port import free_port

FAILED, RUNNING = ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.RUNNING
DEPLOYING = ApplicationStatus.DEPLOYING
Serving = Callable[[], None]


def application(status: ApplicationStatus, *messages: str) -> Any:
    first, *others = messages or ("",)
    deployments = {str(i): SimpleNamespace(message=text) for i, text in enumerate(others)}
    return SimpleNamespace(status=status, message=first, deployments=deployments)


class Serve:
    """What `serve run` and `serve.status` do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statuses: list[dict[str, Any]] = [{}]
        self.arguments: list[str] = []
        self.work: Serving = wait_for_interrupt
        self.has_begun = threading.Event()
        monkeypatch.setattr(run, "LOOK_S", 0.001)
        monkeypatch.setattr(ray, "is_initialized", lambda: True)
        monkeypatch.setattr(serve, "status", self._status)
        monkeypatch.setattr(scripts.cli, "main", self._main)

    def _status(self) -> Any:
        if not self.has_begun.is_set():
            # an interrupt before would hit the test
            return SimpleNamespace(applications={})
        current = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return SimpleNamespace(applications=current)

    def _main(self, arguments: Sequence[str], standalone_mode: bool) -> None:
        self.arguments = list(arguments)
        try:
            self.has_begun.set()
            self.work()
        except KeyboardInterrupt:
            sys.exit()
        except ValueError:
            # as `serve run` ends after an error of its own
            sys.exit()


def wait_for_interrupt() -> None:
    time.sleep(60)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)
    time.sleep(60)


def fail() -> None:
    raise ValueError("a bug")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Serve:
    return Serve(monkeypatch)


def test_a_start_that_fails_ends_with_the_reason(
    fake: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = "Traceback:\n  File 1\nengine.errors.EngineError: rank 1 died while it loaded\n"
    fake.statuses = [
        {},
        {"pagoda": application(DEPLOYING)},
        {"pagoda": application(FAILED, "Failed to update the deployments.", "", trace, "")},
    ]
    assert run.main(["--address", "local", "file"]) == 1
    assert fake.arguments == ["run", "--address", "local", "file"]
    written = capsys.readouterr().err
    assert "application 'pagoda' cannot start" in written
    assert "EngineError: rank 1 died while it loaded; ended after" in written
    assert "File 1" not in written


@pytest.mark.parametrize("has_dashboard", [False, True])
def test_a_ray_of_its_own_has_a_dashboard_only_if_asked(
    fake: Serve, monkeypatch: pytest.MonkeyPatch, has_dashboard: bool
) -> None:
    started: list[Any] = []

    def start(*address: str, **options: Any) -> None:
        started.append((address, options))

    monkeypatch.setattr(ray, "init", start)
    fake.work = interrupt
    assert run.main(["--own-ray", *["--dashboard"] * has_dashboard, "file"]) == 0
    options = {"namespace": "serve", "include_dashboard": has_dashboard}
    assert started == [(("local",), options)]
    assert fake.arguments == ["run", "file"]


@pytest.mark.parametrize(("num_needed", "code"), [(1, 0), (2, 0), (3, 1)])
def test_gpus_that_this_machine_does_not_have_end_the_start(
    fake: Serve,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    num_needed: int,
    code: int,
) -> None:
    monkeypatch.setattr(ray, "init", lambda *_, **__: None)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0, "GPU": 2.0})
    fake.work = interrupt
    assert run.main(["--own-ray", "--gpus", str(num_needed), "file"]) == code
    written = capsys.readouterr().err
    assert ("error: device 'cuda' needs 3 GPU here and Ray finds 2; " in written) == bool(code)
    assert fake.arguments == ([] if code else ["run", "file"])


def test_the_end_that_the_user_asks_for_is_none_of_an_error(fake: Serve) -> None:
    fake.work = interrupt
    assert run.main(["file"]) == 0


def test_an_error_of_serve_itself_has_an_exit_code(fake: Serve) -> None:
    fake.work = fail
    assert run.main(["file"]) == 1


def test_an_application_that_runs_is_looked_at_no_longer(fake: Serve) -> None:
    fake.statuses = [{"a": application(RUNNING), "b": application(DEPLOYING)}] * 2
    fake.statuses += [{"a": application(RUNNING)}, {"a": application(FAILED, "later")}]
    fake.has_begun.set()
    watch = run.StartWatch()
    watch.start()
    watch._thread.join(10)
    assert (watch._thread.is_alive(), watch.failure) == (False, "")


def test_a_failure_without_a_reason_says_so() -> None:
    assert run.reason_of(application(FAILED)) == "no reason is known"
    assert run.reason_of(application(FAILED, "the build failed\n\n")) == "the build failed"


@pytest.mark.slow
def test_a_rank_that_dies_while_it_loads_ends_serve_run(tmp_path: Path) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text(
        f"http_options: {{host: 127.0.0.1, port: {free_port()}}}\n"
        "applications:\n"
        "- {name: dying, route_prefix: /, import_path: tests.fakes.scripted_app:build,"
        " args: {worker: load_and_die}}\n"
    )
    command = [sys.executable, "-m", "app.serve.run", "--own-ray", str(config)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 1
    [line] = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert "application 'dying' cannot start" in line
    assert "rank 0 died while it loaded: Worker unexpectedly exits" in line
    assert (ended.stdout + ended.stderr).count("gang_start_failed") == 3
