"""Writes the reference of all options, docs/configuration.md: see `make docs`.

Default, range and text of an option stand where it is declared, in `app.settings.config` and
`engine.config`; the values of the other sections come from serve_config.yaml.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from app.settings.config import NESTED, AppConfig, PinnedPrefixOption

# heading -> the options below it, in the order in which they are shown
GROUPS: Mapping[str, Sequence[str]] = {
    "Model": (
        "model", "revision", "served_model_name", "load_format", "dtype", "device",
        "tensor_parallel_size", "placement_strategy", "num_threads", "compiled_kernels",
        "peer_memory", "cache_folder", "generation_config",
    ),
    "KV cache": (
        "block_size", "kv_cache_gib", "num_blocks", "gpu_memory_fraction", "swap_gib",
        "memory_policy", "prefix_cache", "pinned_prefix_share", "pinned_prefixes",
        "max_pinned_prefixes",
    ),
    "Batching and scheduling": (
        "max_num_seqs", "max_num_batched_tokens", "lone_prompt_tokens", "max_model_len",
        "prompt_share", "fills_steps", "long_step_share", "inter_token_latency_ms", "late_plans",
        "preemption", "watermark", "growth_blocks", "max_overtakes",
    ),
    "Queue and deadlines": (
        "queue_policy", "max_num_waiting", "max_waiting_tokens", "deadlines.queue_s",
        "deadlines.upload_s", "deadlines.first_token_s", "deadlines.gap_s", "deadlines.whole_s",
        "deadlines.write_s",
    ),
    "Health": (
        "step_deadline_s", "ping_period_s", "ping_timeout_s", "start_deadline_s", "start_attempts",
    ),
    "Replicas that start and stop": ("drain_s", "start_wait_s"),
    "HTTP server": (
        "api_keys_file", "cors_origins", "unknown_parameters", "stream_interval_ms",
        "tool_call_format", "reasoning_format",
        "limits.max_body_mib", "limits.max_body_values", "limits.max_answer_items",
        "limits.max_held_mib", "limits.max_client_held_mib",
    ),
    "Faults": ("resume_timeout_s", "max_resumes"),
    "Metrics, traces and logs": (
        "operator_keys_file", "metrics.aliases", "metrics.ray", "access_log", "tracing.endpoint",
        "tracing.protocol", "tracing.ratio", "tracing.max_traces_per_s", "tracing.headers_file",
        "ui.enabled", "ui.max_viewers", "ui.max_hz",
    ),
    "Traces for what-if": ("flight_recorder.folder", "flight_recorder.max_mib"),
}  # fmt: skip

_UNITS = {"_gib": " GiB", "_mib": " MiB", "_ms": " ms", "_s": " s"}
_TYPES = {bool: "`true`, `false`", str: "text", Path: "path"}

_INTRODUCTION = """# Configuration

Generated from the code by `make docs`; do not edit it by hand.

All options are in one file, [serve_config.yaml](../serve_config.yaml) or a copy of it.
`make serve CONFIG=file` serves it, `python -m app.preflight file` only checks it. The options of
the application stand under `args`. A bad value or an unknown option ends the start with one message
that says what to change, with the nearest known name. `null` stands for a default that depends on
something else. A name with a dot is in a group: `limits: {max_body_mib: 4.0}`."""

_PREFIXES = "Each of `pinned_prefixes` has a name and exactly one of `text`, `file` and `messages`:"

_SERVE = """## Sections for Ray Serve

What stands beside `args` belongs to Ray Serve, whose
[documentation](https://docs.ray.io/en/latest/serve/production-guide/config.html) has every field.
Those that serve_config.yaml sets, with its values (`Ingress` and `Engine` are `deployments`):"""

_PRODUCTION = """In production export `RAY_SERVE_ENABLE_HA_PROXY=1` and
`RAY_SERVE_THROUGHPUT_OPTIMIZED=1` in the environment of `ray start`: streaming then costs a tenth
of the CPU. `cluster.yaml` launches such a cluster on A100 nodes with `ray up`."""

# field of serve_config.yaml, see `serve_fields` -> what it means
SERVE_FIELDS: Mapping[str, str] = {
    "proxy_location": "nodes that take HTTP connections",
    "http_options.host": "address that the HTTP proxy listens on; `0.0.0.0` on a cluster, behind a "
    "firewall or a load balancer",
    "http_options.port": "port of the HTTP proxy",
    "http_options.keep_alive_timeout_s": "seconds until an idle connection is closed",
    "controller_options.runtime_env.env_vars.RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "what "
    "stands in front of the application wherever HTTP comes in: one request id, and no client "
    "header that lifts Serve's limits; keep it in copies of the file",
    "logging_config.encoding": "form of Serve's log lines, `TEXT` or `JSON`",
    "logging_config.log_level": "lowest level that is logged",
    "logging_config.enable_access_log": "log a line for each request",
    "applications.name": "name of the application",
    "applications.route_prefix": "path below which the API is served",
    "applications.import_path": "the code that builds the application",
    "Ingress.ray_actor_options.num_cpus": "CPUs that Ray reserves for each ingress replica, which "
    "tokenizes and streams; the resources of the engine's processes follow from `args`",
    "Ingress.autoscaling_config.min_replicas": "fewest ingress replicas",
    "Ingress.autoscaling_config.max_replicas": "most ingress replicas",
    "Ingress.autoscaling_config.target_ongoing_requests": "requests in progress per ingress "
    "replica that scaling aims at",
    "Engine.autoscaling_config.min_replicas": "fewest engine replicas; each has a copy of the "
    "model",
    "Engine.autoscaling_config.max_replicas": "most engine replicas",
    "Engine.autoscaling_config.upscale_delay_s": "seconds of high load before a replica is added",
    "Engine.autoscaling_config.downscale_delay_s": "seconds of low load before one is removed",
    "Engine.autoscaling_config.look_back_period_s": "seconds whose mean load counts",
    "Engine.autoscaling_config.policy.policy_function": "computes the number of engine replicas; "
    "see [serving a model](serving-a-model.md#replicas-that-follow-the-load)",
    "Engine.autoscaling_config.policy.policy_kwargs.usage": "share of batches and KV caches that "
    "is to be in use",
    "Engine.autoscaling_config.policy.policy_kwargs.delay_s": "predicted seconds until the prefill "
    "of a new request begins above which replicas are added",
}


def reference(serve_config: Any) -> str:
    """The whole page, in Markdown.

    Args:
        serve_config: content of serve_config.yaml.

    Raises:
        KeyError: if an option is in no group, or a field of the file has no text.
    """
    options = all_options()
    parts = [_INTRODUCTION]
    for title, names in GROUPS.items():
        parts += [f"## {title}", _option_table({name: options.pop(name) for name in names})]
        if title == "KV cache":
            parts += [_PREFIXES, _option_table(PinnedPrefixOption.model_fields)]
    if options:
        raise KeyError(f"in no group: {', '.join(options)}")
    rows = (
        (f"`{name}`", f"`{value}`", SERVE_FIELDS[name])
        for name, value in serve_fields(serve_config).items()
    )
    parts += [_SERVE, _table(("field", "value", "meaning"), rows), _PRODUCTION]
    return "\n\n".join(parts) + "\n"


def all_options() -> dict[str, FieldInfo]:
    """Every option by its whole name; groups are replaced by what is in them."""
    found: dict[str, FieldInfo] = {}
    for name, field in AppConfig.model_fields.items():
        group = NESTED.get(name)
        inside = {name: field} if group is None else _inside(name, group)
        found |= inside
    return found


def shown_options(config: AppConfig) -> Iterator[tuple[str, str, bool]]:
    """Yield the name of each option, its value as JSON, and whether it is the default.

    Texts of pinned prefixes are not shown, nor what stands before the host of a URL.
    """
    values, defaults = config.model_dump(mode="json"), AppConfig().model_dump(mode="json")
    for name in all_options():
        group, _, inner = name.rpartition(".")
        value, default = ((each[group] if group else each)[inner] for each in (values, defaults))
        is_default = value == default
        if name == "pinned_prefixes":
            value = [prefix["name"] for prefix in value]
        elif isinstance(value, str):
            value = re.sub(r"://[^/@]*@", "://***@", value)
        yield name, json.dumps(value), is_default


def _inside(group: str, model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {f"{group}.{name}": field for name, field in model.model_fields.items()}


def serve_fields(content: Any) -> dict[str, str]:
    """Fields of a Serve configuration file beside `args`, with their values as YAML.

    Those of the only application's deployments begin with the deployment's name.
    """
    [application] = content["applications"]
    deployments = {each["name"]: each for each in application["deployments"]}
    return (
        _leaves({name: content[name] for name in content if name != "applications"})
        | _leaves({"applications": application}, without=("args", "deployments"))
        | _leaves(deployments, without=("name",))
    )


def _leaves(parts: Mapping[str, Any], *, without: Sequence[str] = ()) -> dict[str, str]:
    """Values by their path, in YAML."""
    found: dict[str, str] = {}
    for name, value in parts.items():
        if isinstance(value, dict):
            inside = {f"{name}.{key}": value[key] for key in value if key not in without}
            found |= _leaves(inside)
        else:
            found[name] = yaml.safe_dump(value).splitlines()[0]
    return found


def _option_table(options: Mapping[str, FieldInfo]) -> str:
    rows = (
        (f"`{name}`", default_of(field), values_of(name, field), field.description or "")
        for name, field in options.items()
    )
    return _table(("option", "default", "values", "meaning"), rows)


def _table(columns: Sequence[str], rows: Iterator[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (columns, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(columns), *lines[1:]])


def default_of(field: FieldInfo) -> str:
    """What an option is when nobody sets it, in Markdown."""
    extra = field.json_schema_extra
    if isinstance(extra, dict):
        return str(extra["shown"])
    if field.is_required():
        return "must be given"
    default = field.default
    if default is None:
        return "none"
    if isinstance(default, bool):
        return f"`{default}`".lower()
    return f"`{default}`" if isinstance(default, str) else f"{default:g}"


def values_of(name: str, field: FieldInfo) -> str:
    """What an option accepts: choices, a range with its unit, or a type."""
    kind = kind_of(field)
    if get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(kind))
    if get_origin(kind) is tuple:
        return "list"
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
    return _TYPES[kind] if kind in _TYPES else _range(field) + unit


def kind_of(field: FieldInfo) -> Any:
    """The type of an option's values, without null and without what pydantic adds to it."""
    annotation: Any = field.annotation
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(arg for arg in get_args(annotation) if arg is not type(None))
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _range(field: FieldInfo) -> str:
    bounds = {
        name: getattr(part, name)
        for part in field.metadata
        for name in ("ge", "gt", "le", "lt")
        if hasattr(part, name)
    }
    above = f"above {_number(bounds['gt'])}" if "gt" in bounds else ""
    if "le" in bounds:
        return f"{above or _number(bounds['ge'])} to {_number(bounds['le'])}"
    # a limit that only the type's size sets is none to a reader
    return above or f"at least {_number(bounds['ge'])}"


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    serve_config = Path("serve_config.yaml").read_text(encoding="utf-8")
    sys.stdout.write(reference(yaml.safe_load(serve_config)))
