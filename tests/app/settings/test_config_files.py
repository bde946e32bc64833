from typing import Any

import yaml
from ray.serve.schema import ServeDeploySchema

from app.http.proxy import middlewares
from app.settings.config import parse_config
from tests import ROOT


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def application() -> Any:
    return read("serve_config.yaml")["applications"][0]


def test_serve_accepts_the_serve_config() -> None:
    ServeDeploySchema.model_validate(read("serve_config.yaml"))


def test_serve_calls_our_middleware_in_its_proxies() -> None:
    """Without it clients lift Serve's limits by header, and answers have two request ids."""
    named = read("serve_config.yaml")["controller_options"]["runtime_env"]["env_vars"]
    module, _, function = named["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"].partition(":")
    assert (module, function) == (middlewares.__module__, middlewares.__name__)


def test_the_options_of_the_serve_config_are_the_defaults() -> None:
    assert parse_config(application()["args"]) == parse_config({})


def test_both_deployments_scale_within_two_cores() -> None:
    limits = {d["name"]: d["autoscaling_config"] for d in application()["deployments"]}
    assert {scale["min_replicas"] for scale in limits.values()} == {1}
    num_cpus = 0.1 * limits["Ingress"]["max_replicas"] + 0.5 * limits["Engine"]["max_replicas"]
    assert num_cpus <= 2
