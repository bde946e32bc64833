import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import yaml

from app.serve.deployments import resources
from engine.config import EngineConfig
from load_tests.faults import server
from load_tests.faults.server import set_ingress, small_model, vocab_size, write_config


def test_the_small_model_has_the_embedded_models_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "embedded"
    source.mkdir()
    (source / "tokenizer.json").write_text("{}")
    published = {"vocab_size": 77, "bos_token_id": 1, "eos_token_id": 2, "hidden_size": 4096}
    (source / "config.json").write_text(json.dumps(published))
    monkeypatch.setattr(server, "embedded_model", lambda: source)
    model = small_model(tmp_path / "small")
    assert (model / "tokenizer.json").read_text() == "{}"
    assert vocab_size(model) == 77
    assert json.loads((model / "config.json").read_text())["hidden_size"] == 64


def test_the_configuration_keeps_all_but_port_replicas_and_options(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    options = {"num_blocks": 9}
    write_config(Path("serve_config.yaml"), path, port=1234, replicas=3, options=options)
    config, base = (
        yaml.safe_load(path.read_text()),
        yaml.safe_load(Path("serve_config.yaml").read_text()),
    )
    assert config["http_options"] == base["http_options"] | {"port": 1234}
    [application] = config["applications"]
    assert application["args"] == base["applications"][0]["args"] | options
    numbers = {d["name"]: d["num_replicas"] for d in application["deployments"]}
    assert numbers == {"Ingress": 1, "Engine": 3}
    assert not any("autoscaling_config" in d for d in application["deployments"])


def test_on_two_nodes_the_ingress_is_where_no_fault_is_and_each_has_an_engine(
    tmp_path: Path,
) -> None:
    path = tmp_path / "config.yaml"
    base = Path("serve_config.yaml")
    write_config(base, path, port=1234, replicas=2, options={}, has_two_nodes=True)
    config = yaml.safe_load(path.read_text())
    assert config["proxy_location"] == "HeadOnly"
    ingress, engine = config["applications"][0]["deployments"]
    assert ingress["ray_actor_options"]["resources"] == {"node:__internal_head__": 0.001}
    # as the application would ask for, and the only slot of a node
    one_rank = cast(
        "EngineConfig",
        SimpleNamespace(device="cpu", tensor_parallel_size=1, placement_strategy="STRICT_PACK"),
    )
    control, rank = resources(one_rank)["placement_group_bundles"]
    assert engine["placement_group_bundles"] == [control | {"engine_slot": 1}, rank]


def test_only_the_ingress_gets_options_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    write_config(Path("serve_config.yaml"), path, port=1, replicas=2, options={})
    before = yaml.safe_load(path.read_text())
    set_ingress(path, {"num_replicas": 2, "health_check_timeout_s": 60})
    after = yaml.safe_load(path.read_text())
    ingress, engine = after["applications"][0]["deployments"]
    assert (ingress["num_replicas"], ingress["health_check_timeout_s"]) == (2, 60)
    assert engine == before["applications"][0]["deployments"][1]
