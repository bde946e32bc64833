"""Each file below configs/ passes the preflight, with a model's configuration and no weights."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from app.preflight import check, check_file
from app.settings.config import parse_config
from tests import ROOT

CONFIGS = sorted(path for path in (ROOT / "configs").glob("*.yaml") if path.name != "kuberay.yaml")
LLAMA = {"architectures": ["LlamaForCausalLM"], "num_key_value_heads": 8, "vocab_size": 128256}
QWEN = {"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 8, "vocab_size": 152064}
# hub id -> config.json, as far as it is read
MODELS: dict[str, dict[str, Any]] = {
    "meta-llama/Llama-3.1-8B-Instruct": LLAMA | {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 131072,
    },
    "meta-llama/Llama-3.3-70B-Instruct": LLAMA | {
        "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
        "num_attention_heads": 64, "max_position_embeddings": 131072,
    },
    "Qwen/Qwen2.5-32B-Instruct": QWEN | {
        "hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64,
        "num_attention_heads": 40, "max_position_embeddings": 32768,
    },
    "Qwen/Qwen2.5-72B-Instruct": QWEN | {
        "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
        "num_attention_heads": 64, "max_position_embeddings": 32768,
    },
}  # fmt: skip
TENSOR_PARALLEL_SIZES = {"tp2": 2, "tp4": 4, "tp8": 8}


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that gives models without their weights."""

    def snapshot_download(repo_id: str, *, allow_patterns: list[str], **options: Any) -> str:
        assert "*.safetensors" not in allow_patterns
        folder = tmp_path / repo_id.replace("/", "--")
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(MODELS[repo_id]))
        (folder / "tokenizer.json").write_text("{}")
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_all_kinds_are_there() -> None:
    names = {path.stem for path in CONFIGS}
    assert names == {"cpu", "one-gpu", "replicas", *TENSOR_PARALLEL_SIZES}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_is_whole(path: Path) -> None:
    ServeDeploySchema.model_validate(read(path))
    check_file(path, with_weights=False)
    [application] = read(path)["applications"]
    assert [each["name"] for each in application["deployments"]] == ["Ingress", "Engine"]
    engine = check(parse_config(application["args"]), with_weights=False)
    assert engine.device == ("cpu" if path.stem == "cpu" else "cuda")
    assert engine.tensor_parallel_size == TENSOR_PARALLEL_SIZES.get(path.stem, 1)
    first, *_ = path.read_text().splitlines()
    assert first.startswith("# ")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_policies_exist(path: Path) -> None:
    for deployment in read(path)["applications"][0]["deployments"]:
        if policy := deployment["autoscaling_config"].get("policy"):
            module, _, name = policy["policy_function"].partition(":")
            assert callable(getattr(importlib.import_module(module), name))


def test_only_what_is_behind_a_balancer_listens_to_the_network() -> None:
    hosts = {path.stem: read(path)["http_options"]["host"] for path in CONFIGS}
    assert {name for name, host in hosts.items() if host != "127.0.0.1"} == {"replicas"}
    [application] = read(ROOT / "configs" / "replicas.yaml")["applications"]
    scales = [each["autoscaling_config"] for each in application["deployments"]]
    assert all(scale["max_replicas"] > scale["min_replicas"] for scale in scales)


@pytest.mark.parametrize("path", [*CONFIGS, ROOT / "serve_config.yaml"], ids=lambda path: path.stem)
def test_our_middleware_stands_in_front_of_serve(path: Path) -> None:
    environment = read(path)["controller_options"]["runtime_env"]["env_vars"]
    name = environment["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"]
    module, _, function = name.partition(":")
    assert callable(getattr(importlib.import_module(module), function))
