from pathlib import Path
from typing import Any

import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.serve.schema import ServeDeploySchema

from app.settings.config import parse_config

ROOT = Path(__file__).parents[2]


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def application() -> Any:
    return read("serve_config.yaml")["applications"][0]


def test_serve_accepts_the_serve_config() -> None:
    ServeDeploySchema.model_validate(read("serve_config.yaml"))


def test_the_options_of_the_serve_config_are_the_defaults() -> None:
    assert parse_config(application()["args"]) == parse_config({})


def test_both_deployments_scale_within_two_cores() -> None:
    limits = {d["name"]: d["autoscaling_config"] for d in application()["deployments"]}
    assert {scale["min_replicas"] for scale in limits.values()} == {1}
    num_cpus = 0.1 * limits["Ingress"]["max_replicas"] + 0.5 * limits["Engine"]["max_replicas"]
    assert num_cpus <= 2


def test_ray_accepts_the_cluster_config() -> None:
    config = prepare_config(read("cluster.yaml"))
    validate_config(config)
    workers = config["available_node_types"]["a100"]
    assert workers["resources"]["GPU"] == 1
    for command in config["head_start_ray_commands"] + config["worker_start_ray_commands"]:
        assert command == "ray stop" or "RAY_AUTH_MODE=token" in command
