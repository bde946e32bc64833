"""The servers of a race: how each is started with the same model, limits and share of a device."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from engine.config import Device, DType
from load_tests import ROOT
from load_tests.bench.peers.vllm_cpu import preloads, recommended
from load_tests.model_folders import load_format_of

OURS, VLLM = "pagoda", "vllm"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What all servers are given alike.

    Attributes:
        model: its folder; weights are random where it has none.
        max_num_seqs: sequences in a batch.
        max_num_batched_tokens: of one step.
        max_model_len: tokens of prompt and answer.
        gpu_memory_fraction: of the card, for each server: they run beside each other.
        dtype: of weights and activations; None leaves it to each server.
        num_threads: that compute, on a CPU.
    """

    model: Path
    device: Device
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    gpu_memory_fraction: float
    dtype: DType | None = None
    num_threads: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A server that can be started.

    Attributes:
        name: in tables; no two of a race have the same.
        command: the words that start it.
        environment: variables that it needs beside those of this process.
    """

    name: str
    command: tuple[str, ...]
    url: str
    environment: Mapping[str, str]

    def full_environment(self) -> dict[str, str]:
        """All variables of its process."""
        return {**os.environ, **self.environment}


def pagoda(
    name: str,
    limits: ServerLimits,
    port: int,
    scratch: Path,
    further: Mapping[str, Any] = MappingProxyType({}),
) -> Contender:
    """Return `pagoda serve` of the file that users start with, with another model and limits.

    Args:
        further: options of the application, instead of those that follow from the limits.
    """
    options: dict[str, Any] = {
        "model": str(limits.model),
        "served_model_name": "served",
        "load_format": load_format_of(limits.model),
        "device": limits.device,
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "max_model_len": limits.max_model_len,
        "prefix_cache": False,
    }
    if limits.dtype is not None:
        options["dtype"] = limits.dtype
    if limits.device == "cuda":
        options["gpu_memory_fraction"] = limits.gpu_memory_fraction
    else:
        options["num_threads"] = limits.num_threads
    config = yaml.safe_load((ROOT / "serve_config.yaml").read_text(encoding="utf-8"))
    config["http_options"]["port"] = port
    [application] = config["applications"]
    application["args"] |= options | dict(further)
    path = scratch / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return Contender(
        name=name,
        command=(sys.executable, "-m", "app.command", "serve", str(path)),
        url=f"http://127.0.0.1:{port}",
        environment={},
    )


def vllm(limits: ServerLimits, port: int, packages: Path | None, words: list[str]) -> Contender:
    """Return `vllm serve` on a GPU.

    Args:
        packages: folder that has them, where they are not this Python's.
        words: further options of its command.
    """
    fraction = ("--gpu-memory-utilization", str(limits.gpu_memory_fraction))
    return _vllm(
        [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(limits.model)],
        [*_vllm_options(limits, port), *fraction, *words],
        port,
        {"PYTHONPATH": str(packages)} if packages else {},
    )


def vllm_on_cpu(limits: ServerLimits, port: int, python: Path, words: list[str]) -> Contender:
    """Return the server of vLLM's CPU build, preloaded and bound to cores as it recommends.

    Its command `vllm` does not start where the package has another name, as that of the CPU has:
    the module behind `vllm serve` does.

    Args:
        python: of an environment where it is installed.
        words: further options of its command.
    """
    # nothing of this project is vLLM's: neither its paths nor the folder where it is started
    apart = {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"}
    return _vllm(
        [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(limits.model)],
        [*_vllm_options(limits, port), *words],
        port,
        recommended(limits.num_threads, preloads(python)) | apart,
    )


def _vllm(
    command: list[str], options: list[str], port: int, environment: Mapping[str, str]
) -> Contender:
    return Contender(
        name=VLLM,
        command=(*command, *options),
        url=f"http://127.0.0.1:{port}",
        environment=environment,
    )


def _vllm_options(limits: ServerLimits, port: int) -> list[str]:
    """What it is given on any device."""
    options = {
        "--host": "127.0.0.1",
        "--port": port,
        "--served-model-name": "served",
        "--max-num-seqs": limits.max_num_seqs,
        "--max-num-batched-tokens": limits.max_num_batched_tokens,
        "--max-model-len": limits.max_model_len,
    }
    if limits.dtype is not None:
        options["--dtype"] = limits.dtype
    if load_format_of(limits.model) == "dummy":
        options["--load-format"] = "dummy"
    pairs = [str(word) for pair in options.items() for word in pair]
    return [*pairs, "--no-enable-prefix-caching"]
