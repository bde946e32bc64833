"""Turns flags of `vllm serve` into options of a Serve configuration."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.settings.config import parse_config
from app.settings.resolved_config import yaml_value
from engine.errors import ConfigError

# flag -> our option with the same meaning and unit
SAME = {
    "model": "model",
    "revision": "revision",
    "served-model-name": "served_model_name",
    "dtype": "dtype",
    "max-model-len": "max_model_len",
    "max-num-seqs": "max_num_seqs",
    "max-num-batched-tokens": "max_num_batched_tokens",
    "block-size": "block_size",
    "tensor-parallel-size": "tensor_parallel_size",
    "load-format": "load_format",
    "gpu-memory-utilization": "gpu_memory_fraction",
    "num-gpu-blocks-override": "num_blocks",
    "swap-space": "swap_gib",
    "enable-prefix-caching": "prefix_cache",
    "max-num-queued-reqs": "max_num_waiting",
    "otlp-traces-endpoint": "tracing.endpoint",
    "generation-config": "generation_config",
}
_SHORT = {"-tp": "--tensor-parallel-size", "-O": "--compilation-config"}
# flag -> what to do instead
OTHERWISE = {
    "api-key": "write the key into a file and set api_keys_file to its path",
    "data-parallel-size": "set min_replicas of the deployment Engine",
    "pipeline-parallel-size": "there is none; use tensor_parallel_size and replicas",
    "quantization": "there is none; GGUF files are read as bfloat16",
    "enable-lora": "there is none",
    "speculative-config": "there is none",
    "trust-remote-code": "never: no code that comes with a model is run",
}
FIXED: Mapping[str, tuple[str, Any]] = {
    "no-enable-prefix-caching": ("prefix_cache", False),
    "enable-log-requests": ("access_log", "generation"),
}


@dataclass(slots=True)
class Translation:
    """What became of the flags.

    Attributes:
        args: options of the application.
        http: of `http_options`.
        problems: what has no place here, each with what to do.
    """

    args: dict[str, Any] = field(default_factory=dict)
    http: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def translate(words: Sequence[str]) -> Translation:
    """Read the words behind `vllm serve`, or all of them.

    Raises:
        ConfigError: if one of our options cannot have the value of its flag.
    """
    found = Translation()
    waiting = list(words)
    while waiting and waiting[0] in ("vllm", "serve", "--"):
        waiting.pop(0)
    while waiting:
        word = waiting.pop(0)
        word = _SHORT.get(word, word)
        if not word.startswith("--"):
            found.args["model"] = word
            continue
        name, has_value, value = word.removeprefix("--").replace("_", "-").partition("=")
        if has_value:
            value = word.partition("=")[2]
        elif waiting and not waiting[0].startswith("-"):
            # a flag without a value is followed by another flag
            value, has_value = waiting.pop(0), "="
        _take(found, name, value if has_value else None)
    parse_config(_nested(found.args))
    found.args = _nested(found.args)
    return found


def _take(found: Translation, name: str, value: str | None) -> None:
    if name in FIXED:
        option, fixed = FIXED[name]
        found.args[option] = fixed
    elif name in ("host", "port") and value is not None:
        found.http[name] = int(value) if name == "port" else value
    elif name == "kv-cache-memory-bytes" and value is not None:
        found.args["kv_cache_gib"] = int(value) / (1 << 30)
    elif name == "stream-interval":
        found.problems.append("--stream-interval counts tokens; set stream_interval_ms instead")
    elif name in SAME:
        option = SAME[name]
        found.args[option] = True if value is None else _value(option, value)
    else:
        found.problems.append(f"--{name}: {OTHERWISE.get(name, 'no option here means the same')}")


def _value(option: str, text: str) -> Any:
    if option in ("model", "revision", "served_model_name", "tracing.endpoint"):
        return text
    if option == "generation_config":
        return {"auto": "use", "vllm": "ignore"}.get(text, text)
    if option == "load_format" and text == "auto":
        return "safetensors"
    value = yaml_value(option, text)
    as_float = option in ("gpu_memory_fraction", "swap_gib")
    convert: Callable[[Any], Any] = float if as_float and isinstance(value, int) else _same
    return convert(value)


def _same(value: Any) -> Any:
    return value


def _nested(args: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in args.items():
        group, _, inside = name.rpartition(".")
        if group:
            nested[group] = nested.get(group, {}) | {inside: value}
        else:
            nested[name] = value
    return nested


def as_config(found: Translation, base: Mapping[str, Any]) -> dict[str, Any]:
    """A whole Serve configuration: a base with what was found in the place of its own.

    Raises:
        ConfigError: if the base has not one application.
    """
    applications = base.get("applications") or []
    if len(applications) != 1:
        raise ConfigError(f"the base has {len(applications)} applications, and must have one")
    app = {**applications[0], "args": found.args}
    http = {**(base.get("http_options") or {}), **found.http}
    return {**base, "http_options": http, "applications": [app]}
