"""configs/kuberay.yaml follows the schema of its custom resource, and says what the others say."""

import json
from typing import Any

import jsonschema
import pytest
import ray
import yaml

from app.command.environment import serving_environment
from tests import ROOT


@pytest.fixture
def manifest() -> Any:
    return yaml.safe_load((ROOT / "configs" / "kuberay.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def schema() -> Any:
    return json.loads((ROOT / "tests" / "cluster" / "rayservice_schema.json").read_text())


def containers(manifest: Any) -> list[Any]:
    cluster = manifest["spec"]["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [each for group in groups for each in group["template"]["spec"]["containers"]]


def test_it_follows_the_schema(manifest: Any, schema: Any) -> None:
    jsonschema.validate(manifest, schema)


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        (["spec"], "serveConfigV3", ""),
        (["spec", "rayClusterConfig"], "enableInTreeAutoscalling", True),
        (["spec", "rayClusterConfig", "workerGroupSpecs", 0], "maxReplicas", "16"),
        (["spec", "rayClusterConfig", "authOptions"], "mode", "tokens"),
    ],
)
def test_the_schema_catches_mistakes(
    path: list[Any], name: str, value: Any, manifest: Any, schema: Any
) -> None:
    place = manifest
    for part in path:
        place = place[part]
    place[name] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(manifest, schema)


def test_it_serves_what_configs_replicas_serves(manifest: Any) -> None:
    replicas = (ROOT / "configs" / "replicas.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(manifest["spec"]["serveConfigV2"]) == yaml.safe_load(replicas)


def test_its_pods_have_the_environment_for_serving(manifest: Any) -> None:
    wanted = serving_environment("haproxy", {})
    # set by the operator, as authOptions says
    del wanted["RAY_AUTH_MODE"]
    assert manifest["spec"]["rayClusterConfig"]["authOptions"] == {"mode": "token"}
    for container in containers(manifest):
        found = {each["name"]: each.get("value") for each in container["env"]}
        assert found.items() >= wanted.items()
        folder, _, program = str(found["RAY_SERVE_HAPROXY_BINARY_PATH"]).rpartition("/bin/")
        assert f"python3 -m venv {folder} " in (ROOT / "Dockerfile").read_text(encoding="utf-8")
        assert f"{program} = " in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_gpu_pods_scale_and_the_head_takes_no_work(manifest: Any) -> None:
    cluster = manifest["spec"]["rayClusterConfig"]
    assert cluster["rayVersion"] == ray.__version__
    assert cluster["enableInTreeAutoscaling"]
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    [workers] = cluster["workerGroupSpecs"]
    assert workers["minReplicas"] < workers["maxReplicas"]
    [application] = yaml.safe_load(manifest["spec"]["serveConfigV2"])["applications"]
    engine = application["deployments"][1]["autoscaling_config"]
    assert engine["max_replicas"] <= workers["maxReplicas"]
    [container] = workers["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
