import json
from pathlib import Path

import psutil
import pytest

from load_tests.__main__ import main
from load_tests.free_port import free_port
from tests import ROOT
from tests.load_tests import own_process


def test_a_missing_configuration_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["startup", "--config", "missing.yaml"])
    assert raised.value.code == 2
    assert "missing.yaml" in capsys.readouterr().err


@pytest.mark.ray
@pytest.mark.slow
def test_the_real_server_is_timed_weighed_and_gone(tmp_path: Path) -> None:
    port = free_port()
    config = tmp_path / "serve.yaml"
    text = (ROOT / "serve_config.yaml").read_text()
    assert "port: 8000" in text
    config.write_text(text.replace("port: 8000", f"port: {port}"))
    words = ["startup", "--config", str(config), "--url", f"http://127.0.0.1:{port}"]
    done = own_process.run(*words, "--output", str(tmp_path), "--log")
    assert done.returncode == 0, done.stdout + done.stderr
    (figures,) = (json.loads(path.read_text()) for path in tmp_path.glob("startup_*.json"))
    (life,) = figures["lives"]
    roles = {weight["role"] for weight in life["weights"]}
    assert {"serve run", "gcs", "raylet", "controller", "replica Ingress"} <= roles
    assert 0 < life["port_open_s"] <= life["healthy_s"] <= life["first_token_s"]
    assert life["left_over"] == []
    assert not [weight for weight in life["weights"] if _is_running(weight["pid"])]
    assert "first token after" in (tmp_path / "LOG.md").read_text()


def _is_running(pid: int) -> bool:
    """Whether there is such a process, other than one that has ended and is only to be reaped."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
