"""cluster.yaml: what `ray up` accepts, and what its nodes need that no schema knows."""

import ast
import json
import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

from tests import ROOT

PROVIDER = files("ray.autoscaler._private.gcp")
# module that the provider imports -> package that brings it
PACKAGES = {
    "google_auth_httplib2": "google-auth-httplib2",
    "googleapiclient": "google-api-python-client",
    # both of which are required by google-api-python-client
    "google": "google-auth",
    "httplib2": "httplib2",
}


@pytest.fixture(scope="module")
def config() -> Any:
    return yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8"))


def node_types(config: Any) -> Iterator[tuple[str, Any]]:
    yield from config["available_node_types"].items()


def gpu_types(config: Any) -> dict[str, Any]:
    return {name: node for name, node in node_types(config) if node["resources"]["GPU"]}


def test_it_follows_rays_schema(config: Any) -> None:
    schema = json.loads((files("ray.autoscaler") / "ray-schema.json").read_text())
    jsonschema.validate(config, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(config | {"setup_comands": []}, schema)


def test_ray_accepts_it_and_adds_no_commands_of_its_own(config: Any) -> None:
    prepared = prepare_config(config)
    validate_config(prepared)
    # Ray's default for the head is `pip install`, and an environment made by uv is not its pip's
    commands = config["setup_commands"] + config["head_setup_commands"]
    assert prepared["head_setup_commands"] == commands
    assert not [command for command in commands if re.search(r"(?<!uv )\bpip install", command)]


def test_every_node_has_token_environment_and_source(config: Any) -> None:
    assert "~/.ray/auth_token" in config["file_mounts"]
    for command in (
        config["head_start_ray_commands"][-1],
        config["worker_start_ray_commands"][-1],
    ):
        assert 'eval "$(~/venv/bin/pagoda environment --proxy haproxy)";' in command
    assert "--dashboard-host=127.0.0.1" in config["head_start_ray_commands"][-1]
    installed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # the second is what the first names for HAProxy
    assert installed["scripts"].keys() == {"pagoda", "pagoda-haproxy"}


def test_gpu_nodes_fit_tensor_parallelism_and_their_machines(config: Any) -> None:
    sizes = {"1g": (12, 1), "8g": (96, 8)}
    types = gpu_types(config)
    for node in types.values():
        cpus, gpus = sizes[node["node_config"]["machineType"].rpartition("-")[2]]
        assert node["resources"] == {"CPU": cpus, "GPU": gpus}
    machines = {node["node_config"]["machineType"] for node in types.values()}
    assert machines == {"a2-highgpu-1g", "a2-highgpu-8g", "a2-ultragpu-8g"}
    spot = [name for name, node in types.items() if "SPOT" in str(node["node_config"])]
    assert spot == ["a100_spot", "a100_x8_spot"]


def test_drivers_fit_torchs_cuda_and_are_waited_for(config: Any) -> None:
    for node in gpu_types(config).values():
        image = node["node_config"]["disks"][0]["initializeParams"]["sourceImage"]
        [driver] = re.findall(r"-nvidia-(\d+)$", image)
        # CUDA 13: https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/
        assert int(driver) >= 580
    waits = config["worker_setup_commands"][0]
    assert "until nvidia-smi" in waits
    assert "timeout" in waits


def test_disks_are_in_the_zone_of_the_nodes(config: Any) -> None:
    zone = config["provider"]["availability_zone"]
    for _, node in node_types(config):
        disk = node["node_config"]["disks"][0]["initializeParams"]
        assert disk["diskType"].startswith(f"zones/{zone}/diskTypes/")


def test_the_installer_is_pinned(config: Any) -> None:
    [installer] = [command for command in config["setup_commands"] if "curl" in command]
    assert re.search(r"/uv/\d+\.\d+\.\d+/install\.sh", installer)


def test_what_the_provider_imports_is_installed(config: Any) -> None:
    imported = set()
    for module in PROVIDER.iterdir():
        if module.name.endswith(".py"):
            for node in ast.walk(ast.parse(module.read_text())):
                if isinstance(node, ast.Import):
                    imported |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    imported.add(str(node.module).partition(".")[0])
    foreign = imported - sys.stdlib_module_names - {"ray"}
    assert foreign == PACKAGES.keys()
    [install] = [command for command in config["setup_commands"] if "uv pip install" in command]
    assert "pagoda[gcp]" in install
    pins = (ROOT / "constraints.txt").read_text()
    for package in PACKAGES.values():
        assert f"\n{package}==" in pins
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = " ".join(extra["optional-dependencies"]["gcp"])
    for package in ("google-api-python-client", "google-auth-httplib2", "gcsfs"):
        assert package in wanted


@pytest.mark.slow
def test_the_provider_can_be_imported_with_what_is_installed(tmp_path: Path) -> None:
    """Needs a package index; the rest of the environment is this one's."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = extra["optional-dependencies"]["gcp"]
    # what is installed here already is found there, as cluster.yaml installs both at once
    here = Path(jsonschema.__file__).parent.parent
    site = subprocess.run(
        [python, "-c", "import site; print(site.getsitepackages()[0])"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    (Path(site) / "here.pth").write_text(f"{here}\n")
    install = [python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", *packages]
    subprocess.run(install, check=True, capture_output=True)
    code = (
        "import gcsfs, yaml\n"
        "from ray.autoscaler._private.providers import _get_node_provider_cls as find\n"
        "config = yaml.safe_load(open('cluster.yaml'))\n"
        "print(find(config['provider']).__name__)\n"
    )
    done = subprocess.run(
        [python, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "GCPNodeProvider\n", done.stderr
