from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from load_tests.bench.serving.contenders import ServerLimits, pagoda, vllm, vllm_on_cpu
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


def test_on_a_cpu_it_has_threads_and_no_share_of_a_card(
    limits: ServerLimits, tmp_path: Path
) -> None:
    limits = replace(limits, device="cpu", dtype="bfloat16", num_threads=3)
    pagoda("ours", limits, 8111, tmp_path)
    [application] = yaml.safe_load((tmp_path / "ours.yaml").read_text())["applications"]
    assert "gpu_memory_fraction" not in application["args"]
    assert (application["args"]["num_threads"], application["args"]["dtype"]) == (3, "bfloat16")


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


def test_vllm_on_a_cpu_has_the_same_limits_and_threads(
    limits: ServerLimits, tmp_path: Path
) -> None:
    limits = replace(limits, device="cpu", dtype="bfloat16", num_threads=2)
    openmp = tmp_path / "env" / "lib" / "libiomp5.so"
    openmp.parent.mkdir(parents=True)
    openmp.write_bytes(b"")
    python = tmp_path / "env" / "bin" / "python"
    contender = vllm_on_cpu(limits, 8112, python, ["--no-async-scheduling"])
    words = contender.command
    module = (str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(limits.model))
    assert words[:5] == module
    given = {
        "--port": "8112",
        "--max-num-seqs": "48",
        "--max-num-batched-tokens": "640",
        "--max-model-len": "512",
        "--dtype": "bfloat16",
    }
    assert {name: words[words.index(name) + 1] for name in given} == given
    assert "--no-enable-prefix-caching" in words
    assert "--gpu-memory-utilization" not in words
    assert words[-1] == "--no-async-scheduling"
    variables = contender.environment
    assert (variables["OMP_NUM_THREADS"], variables["VLLM_CPU_OMP_THREADS_BIND"]) == ("2", "0-1")
    assert str(openmp) in variables["LD_PRELOAD"]
    # modules of this project, some of which have names of vLLM's, are not found
    assert (variables["PYTHONPATH"], variables["PYTHONSAFEPATH"]) == ("", "1")
