"""The chart for Helm: what it asks for, what it makes of that, and that it makes what is valid.

What it makes is looked at where `helm` is installed, by Kubernetes's own schemas where the package
`kubernetes-validate` is.
"""

import copy
import importlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import ray
import yaml
from ray.serve.schema import ServeDeploySchema

from app.command.environment import serving_environment
from app.settings.config import parse_config
from tests import ROOT
from tests.cluster.test_kuberay import containers

CHART = ROOT / "deploy" / "chart" / "pagoda"
HELM = shutil.which("helm")
KUBERNETES = "1.34"
needs_helm = pytest.mark.skipif(HELM is None, reason="helm is not installed")
KEYS = {"apiKeys": {"existingSecret": "keys"}, "operatorKeys": {"existingSecret": "operators"}}
EVERYTHING: dict[str, Any] = {
    **KEYS,
    "huggingFace": {"existingSecret": "hub"},
    "image": {"tag": "cpu", "pullSecrets": [{"name": "registry"}]},
    "cache": {"persistence": {"enabled": True, "storageClass": "fast"}},
    "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "tls"},
    "service": {"annotations": {"a": "b"}},
    "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
    "serviceAccount": {"annotations": {"a": "b"}},
    "podAnnotations": {"a": "b"},
    "podLabels": {"a": "b"},
    "nodeSelector": {"gpu": "a100"},
    "affinity": {"podAntiAffinity": {}},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
    "extraVolumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
    "extraVolumeMounts": [{"name": "models", "mountPath": "/models"}],
    "options": {"drain_s": 90.5, "tensor_parallel_size": 2},
}
RAY = {"mode": "rayservice"}
SETTINGS = {
    "as it is": {},
    "with everything": {
        **EVERYTHING, "autoscaling": {"enabled": True}, "minAvailable": 1,
    },
    "on KubeRay": RAY,
    "on KubeRay with everything": EVERYTHING | RAY | {
        "ray": {"head": {"nodeSelector": {"pool": "head"}}},
    },
}  # fmt: skip


def values() -> Any:
    return yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))


def schema() -> Any:
    return json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))


def paths(content: Any, before: str = "") -> Iterator[str]:
    """Yield the names of all values, as templates write them."""
    for name, value in content.items():
        path = f"{before}.{name}"
        yield path
        if isinstance(value, dict):
            yield from paths(value, path)


def templates() -> str:
    found = sorted((CHART / "templates").rglob("*.*"))
    return "\n".join(path.read_text(encoding="utf-8") for path in found)


def test_its_version_is_that_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    said = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert said is not None
    assert (chart["version"], chart["appVersion"]) == (said[1], said[1])
    assert values()["ray"]["version"] == ray.__version__


def test_templates_ask_for_values_that_exist() -> None:
    asked = set(re.findall(r"\.Values((?:\.\w+)+)", templates()))
    assert len(asked) > 50
    assert asked <= set(paths(values()))


def test_each_value_is_asked_for_and_has_a_comment_above_it() -> None:
    asked = set(re.findall(r"\.Values((?:\.\w+)+)", templates()))
    lines = (CHART / "values.yaml").read_text(encoding="utf-8").splitlines()
    for name in values():
        assert any(f"{path}.".startswith(f".{name}.") for path in asked), name
        [place] = [number for number, line in enumerate(lines) if line.startswith(f"{name}:")]
        assert lines[place - 1].startswith("# "), name


def test_values_follow_their_schema() -> None:
    jsonschema.validate(values(), schema())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("modes", "deployment"),
        ("mode", "daemonset"),
        ("image.repo", "x"),
        ("replicas", "2"),
        ("replicas", -1),
        ("options.model", ""),
        ("probes.startup.periodSeconds", 0),
        ("sharedMemory", "8GB"),
        ("tolerations", {}),
        ("cache.persistence.size", 100),
    ],
)
def test_the_schema_catches_mistakes(path: str, value: Any) -> None:
    content = copy.deepcopy(values())
    *folders, name = path.split(".")
    place = content
    for folder in folders:
        place = place[folder]
    place[name] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, schema())


def helm(*words: str, content: Any = None) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    return subprocess.run(
        [HELM, words[0], *words[1:], str(CHART), "--values", "-"],
        input=json.dumps(content or {}), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def rendered(content: Any) -> list[Any]:
    done = helm("template", "pagoda", content=content)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def one(objects: list[Any], kind: str) -> Any:
    [found] = [each for each in objects if each["kind"] == kind]
    return found


def serve_config(objects: list[Any]) -> Any:
    if any(each["kind"] == "RayService" for each in objects):
        return yaml.safe_load(one(objects, "RayService")["spec"]["serveConfigV2"])
    return yaml.safe_load(one(objects, "ConfigMap")["data"]["serve_config.yaml"])


@needs_helm
@pytest.mark.parametrize("name", SETTINGS)
def test_helm_finds_nothing_to_complain_of(name: str) -> None:
    done = helm("lint", "--strict", content=SETTINGS[name])
    assert done.returncode == 0, done.stdout + done.stderr


@needs_helm
@pytest.mark.parametrize("name", SETTINGS)
def test_what_it_makes_is_valid(name: str) -> None:
    """By the schemas of Kubernetes and of KubeRay; kinds of the Prometheus operator have none."""
    objects = rendered(SETTINGS[name])
    kinds = {each["kind"] for each in objects}
    if "RayService" in kinds:
        ray_schema = json.loads((ROOT / "tests/cluster/rayservice_schema.json").read_text())
        jsonschema.validate(one(objects, "RayService"), ray_schema)
    try:
        kubernetes = importlib.import_module("kubernetes_validate")
    except ImportError:
        pytest.skip("kubernetes-validate is not installed")
    others = {"RayService", "PodMonitor", "PrometheusRule"}
    for each in objects:
        if each["kind"] not in others:
            kubernetes.validate(each, KUBERNETES, strict=True)
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate(one(objects, "Pod") | {"specs": {}}, KUBERNETES, strict=True)


@needs_helm
@pytest.mark.parametrize("name", SETTINGS)
def test_what_it_serves_is_a_configuration(name: str) -> None:
    config = serve_config(rendered(SETTINGS[name]))
    ServeDeploySchema.model_validate(config)
    parsed = parse_config(config["applications"][0]["args"])
    assert parsed.max_num_waiting == 1024
    has_keys = "everything" in name
    assert (str(parsed.api_keys_file) == "/etc/pagoda/api-keys/keys") == has_keys
    assert (str(parsed.operator_keys_file) == "/etc/pagoda/operator-keys/keys") == has_keys


@needs_helm
@pytest.mark.parametrize("name", SETTINGS)
def test_each_pod_mounts_what_it_has_and_may_drain(name: str) -> None:
    objects = rendered(SETTINGS[name])
    drain_s = serve_config(objects)["applications"][0]["args"]["drain_s"]
    for spec in pods(objects):
        volumes = {each["name"] for each in spec["volumes"]}
        for container in spec["containers"]:
            assert {each["name"] for each in container["volumeMounts"]} == volumes
        assert spec["terminationGracePeriodSeconds"] >= drain_s + 60
        assert spec["securityContext"]["runAsNonRoot"]


def pods(objects: list[Any]) -> list[Any]:
    """The pods that serve."""
    if any(each["kind"] == "Deployment" for each in objects):
        return [one(objects, "Deployment")["spec"]["template"]["spec"]]
    cluster = one(objects, "RayService")["spec"]["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


@needs_helm
def test_a_server_is_probed_and_its_service_leads_to_it() -> None:
    objects = rendered({})
    template = one(objects, "Deployment")["spec"]["template"]
    [container] = template["spec"]["containers"]
    paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in values()["probes"]}
    assert paths == {"startup": "/health", "liveness": "/live", "readiness": "/health"}
    service = one(objects, "Service")["spec"]
    assert service["selector"].items() <= template["metadata"]["labels"].items()
    assert not service["selector"].items() <= one(objects, "Pod")["metadata"]["labels"].items()
    assert service["ports"][0]["targetPort"] in {port["name"] for port in container["ports"]}


@needs_helm
def test_pods_of_kuberay_have_the_environment_for_serving() -> None:
    wanted = serving_environment("haproxy", {})
    # set by the operator, as authOptions says
    del wanted["RAY_AUTH_MODE"]
    [manifest] = [each for each in rendered(RAY) if each["kind"] == "RayService"]
    guarded = {"RAY_SERVE_HAPROXY_BINARY_PATH": "/opt/pagoda/bin/pagoda-haproxy"}
    for container in containers(manifest):
        found = {each["name"]: each.get("value") for each in container["env"]}
        assert found.items() >= (wanted | guarded).items()


@needs_helm
def test_alerts_are_those_of_the_project_and_metrics_need_a_key() -> None:
    objects = rendered(EVERYTHING | RAY)
    rules = yaml.safe_load((ROOT / "deploy/prometheus-alerts.yaml").read_text(encoding="utf-8"))
    assert one(objects, "PrometheusRule")["spec"] == rules
    [endpoint] = one(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"]["credentials"]["name"] == "operators"
    refused = helm("template", "pagoda", content={"monitoring": {"enabled": True}})
    assert "monitoring.enabled needs operatorKeys.existingSecret" in refused.stderr
