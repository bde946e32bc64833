"""The server under test: `serve run` of the user's configuration, a small model in it."""

import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from load_tests.faults.two_nodes import ENGINE_SLOT
from load_tests.faults.victims import HEAD
from load_tests.model_folders import SHAPES, embedded_model, load_format_of

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
NUM_BLOCKS = 512
# object store of each rank, so that there are objects to be lost
SWAP_GIB = 1 / 32
_ON_CPU = {"dtype": "float32", "num_blocks": NUM_BLOCKS, "swap_gib": SWAP_GIB}

# by deployment, what is different on two nodes
_PLACED: dict[str, dict[str, Any]] = {
    "Ingress": {"ray_actor_options": {"num_cpus": 0.1, "resources": {HEAD: 0.001}}},
    "Engine": {"placement_group_bundles": [{"CPU": 0.1, ENGINE_SLOT: 1}, {"CPU": 0.4}]},
}


def small_model(folder: Path, source: Path | None = None, *, vocab_size: int | None = None) -> Path:
    """Make a model of two small layers with random weights.

    Args:
        source: folder of the model whose tokenizer it gets; None for the embedded one.
        vocab_size: of the model, if not as many tokens as the tokenizer has; log-probabilities
            cost as much as there are.
    """
    source = source or embedded_model()
    folder.mkdir(parents=True, exist_ok=True)
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copy(source / name, folder / name)
    published = json.loads((source / "config.json").read_text())
    ids = {name: published[name] for name in ("vocab_size", "bos_token_id", "eos_token_id")}
    if vocab_size is not None:
        ids["vocab_size"] = vocab_size
    (folder / "config.json").write_text(json.dumps(SHAPES["tiny"] | ids))
    return folder


def vocab_size(model: Path) -> int:
    """Token ids that the model knows."""
    return int(json.loads((model / "config.json").read_text())["vocab_size"])


def write_config(
    base: Path,
    path: Path,
    *,
    port: int,
    replicas: int,
    options: dict[str, Any],
    has_two_nodes: bool = False,
) -> None:
    """Write a `serve run` file: the given one with another port and a fixed number of engines.

    Args:
        options: of the application, in place of those of the file.
        has_two_nodes: whether it is for `two_nodes`: ingress and proxy stay on the head node, and
            each node has one engine replica, of one rank on a CPU.
    """
    config = yaml.safe_load(base.read_text(encoding="utf-8"))
    config["http_options"]["port"] = port
    [application] = config["applications"]
    application["args"] |= options
    for deployment in application["deployments"]:
        # one ingress: whose ingress died is then known
        number = replicas if deployment["name"] == "Engine" else 1
        deployment.pop("autoscaling_config", None)
        deployment["num_replicas"] = number
        if has_two_nodes:
            deployment |= _PLACED[deployment["name"]]
    if has_two_nodes:
        # of two nodes on one machine only one can listen at the port
        config["proxy_location"] = "HeadOnly"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")


def set_ingress(path: Path, options: dict[str, Any]) -> None:
    """Give the deployment of ingress replicas other options of Serve, in a file of a server."""
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    [ingress] = [
        each for each in config["applications"][0]["deployments"] if each["name"] == "Ingress"
    ]
    ingress.update(options)
    path.write_text(yaml.safe_dump(config), encoding="utf-8")


def serving_options(model: Path, device: str) -> dict[str, Any]:
    """Application options for a model: in float32 on a CPU, where its pool is kept small."""
    options = {
        "model": str(model),
        "served_model_name": "served",
        "load_format": load_format_of(model),
        "device": device,
    }
    return options | (_ON_CPU if device == "cpu" else {})
