import os
import subprocess
import sys

from app.command.environment import has_haproxy, own_environment, serving_environment
from tests import ROOT


def test_what_is_set_already_stays() -> None:
    found = serving_environment(None, {"OMP_NUM_THREADS": "4", "HOME": "/h"})
    assert (found["OMP_NUM_THREADS"], found["HOME"]) == ("4", "/h")
    assert (found["RAY_AUTH_MODE"], found["RAY_worker_niceness"]) == ("token", "0")


def test_no_process_is_kept_in_reserve() -> None:
    found = serving_environment(None, {})
    assert found["RAY_enable_worker_prestart"] == found["RAY_prestart_worker_first_driver"] == "0"


def test_the_proxy_is_what_was_asked_for_and_otherwise_what_is_set() -> None:
    haproxy = serving_environment("haproxy", {})
    assert has_haproxy(haproxy)
    assert haproxy["RAY_SERVE_THROUGHPUT_OPTIMIZED"] == "1"
    assert has_haproxy(serving_environment(None, haproxy))
    assert not has_haproxy(serving_environment("python", haproxy))
    assert not has_haproxy(serving_environment(None, {}))


def test_the_environment_of_this_process_is_a_copy() -> None:
    own_environment()["PAGODA_TEST"] = "1"
    assert "PAGODA_TEST" not in os.environ


def test_a_shell_can_take_the_printed_lines() -> None:
    command = f'eval "$({sys.executable} -m app.command environment --proxy haproxy)"; env'
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "a b'c"}
    done = subprocess.run(
        command, shell=True, cwd=ROOT, env=given, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert {"RAY_AUTH_MODE=a b'c", "OMP_NUM_THREADS=1", "RAY_SERVE_ENABLE_HA_PROXY=1"} <= {*lines}
