from pathlib import Path

import pytest
import yaml

from load_tests.bench.serving.contenders import ServerLimits, pagoda, vllm
from load_tests.model_folders import model_folder
from tests import ROOT


@pytest.fixture
def limits(tmp_path: Path) -> ServerLimits:
    return ServerLimits(
        model=model_folder("tiny", tmp_path),
        device="cuda",
        max_num_seqs=48,
        max_num_batched_tokens=640,
        max_model_len=512,
        gpu_memory_fraction=0.25,
    )


def test_ours_is_the_users_file_with_the_limits_in_it(limits: ServerLimits, tmp_path: Path) -> None:
    contender = pagoda("ours", limits, 8111, tmp_path)
    config = yaml.safe_load((tmp_path / "ours.yaml").read_text())
    users = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    assert config["http_options"] == users["http_options"] | {"port": 8111}
    [application], [of_user] = config["applications"], users["applications"]
    assert application["deployments"] == of_user["deployments"]
    changed = {
        "model": str(limits.model),
        "served_model_name": "served",
        "load_format": "dummy",
        "device": "cuda",
        "max_num_seqs": 48,
        "max_num_batched_tokens": 640,
        "max_model_len": 512,
        "prefix_cache": False,
        "gpu_memory_fraction": 0.25,
    }
    assert application["args"] == of_user["args"] | changed
    assert contender.command[1:] == ("-m", "app.command", "serve", str(tmp_path / "ours.yaml"))
    assert contender.url == "http://127.0.0.1:8111"


def test_ours_may_have_further_options(limits: ServerLimits, tmp_path: Path) -> None:
    pagoda("ours", limits, 8111, tmp_path, {"max_num_seqs": 12, "inter_token_latency_ms": 9})
    [application] = yaml.safe_load((tmp_path / "ours.yaml").read_text())["applications"]
    assert application["args"]["max_num_seqs"] == 12
    assert application["args"]["inter_token_latency_ms"] == 9


def test_on_a_cpu_no_share_of_a_card_is_asked_for(tmp_path: Path) -> None:
    limits = ServerLimits(
        model=model_folder("tiny", tmp_path),
        device="cpu",
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=128,
        gpu_memory_fraction=0.25,
    )
    pagoda("ours", limits, 8111, tmp_path)
    [application] = yaml.safe_load((tmp_path / "ours.yaml").read_text())["applications"]
    assert "gpu_memory_fraction" not in application["args"]


def test_the_peer_has_the_same_limits(limits: ServerLimits) -> None:
    contender = vllm(limits, 8112, Path("/packages"), ["--api-server-count", "2"])
    words = contender.command
    given = {
        "--port": "8112",
        "--max-num-seqs": "48",
        "--max-num-batched-tokens": "640",
        "--max-model-len": "512",
        "--gpu-memory-utilization": "0.25",
        "--load-format": "dummy",
        "--api-server-count": "2",
    }
    assert {name: words[words.index(name) + 1] for name in given} == given
    assert "--no-enable-prefix-caching" in words
    assert contender.environment == {"PYTHONPATH": "/packages"}
    assert contender.full_environment()["PYTHONPATH"] == "/packages"
