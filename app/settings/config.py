"""The application's configuration: `args` of serve_config.yaml, checked."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from app.models import embedded
from app.models.bucket import is_url
from app.models.cache_folder import default_cache
from app.models.embedded import EMBEDDED
from app.protocol.api_settings import ReasoningFormat, ToolCallFormat
from app.protocol.chat.messages import Message
from app.protocol.generation_fields import PREFIX_NAME
from app.settings.option import STRICT, PathOption, by_device, engine_option, option
from app.settings.request_options import DeadlineOptions, Limits
from app.settings.telemetry_options import (
    FlightRecorderOption,
    MetricsOption,
    PageOption,
    TracingOption,
)
from engine.config import (
    CPU_KV_CACHE_BYTES,
    Device,
    DType,
    LoadFormat,
    MemoryPolicy,
    PlacementStrategy,
    PreemptionPolicy,
    QueuePolicy,
)
from engine.errors import ConfigError

# as browsers write it: scheme, host and port, without a path
_Origin = Annotated[str, Field(pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^/\s]+)$")]

# what null stands for where it depends on the device
DEFAULT_MAX_NUM_SEQS: Mapping[Device, int] = {"cpu": 64, "cuda": 256}
DEFAULT_MAX_NUM_BATCHED_TOKENS: Mapping[Device, int] = {"cpu": 256, "cuda": 2048}
# on a CPU each chunk of a stream takes time from the model
DEFAULT_STREAM_INTERVAL_MS: Mapping[Device, float] = {"cpu": 50.0, "cuda": 20.0}
# of these for each open stream, where fewer are open; on a GPU twice what a part of a batch costs
# its ingress and the proxy, so that half of their time is left
STREAM_PART_MS: Mapping[Device, float] = {"cpu": 1.0, "cuda": 0.04}


class PinnedPrefixOption(BaseModel):
    """A text with which many prompts begin, kept in the KV cache from the start."""

    model_config = STRICT

    name: str = option("name, unique in the list", pattern=PREFIX_NAME)
    text: str | None = option("the prefix of completions", default=None, min_length=1)
    file: PathOption | None = option("UTF-8 file with the prefix of completions", default=None)
    messages: tuple[Message, ...] | None = option(
        "first messages of conversations", default=None, min_length=1, strict=False
    )
    ttl_s: float | None = option(
        "time until the prefix is released",
        default=None,
        shown="none: never",
        gt=0,
        allow_inf_nan=False,
    )

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if sum(value is not None for value in (self.text, self.file, self.messages)) != 1:
            raise PydanticCustomError("content", "give exactly one of text, file and messages")
        return self


class AppConfig(BaseModel):
    """All options of one application; docs/configuration.md is made from this class."""

    model_config = STRICT

    model: str = option(
        "`embedded` (SmolLM2-135M-Instruct), a local folder or GGUF file, one in a bucket such as "
        "`gs://bucket/folder`, or a Hugging Face hub id, with the name of a GGUF file behind it if "
        "that is wanted: `org/name/file.gguf`",
        default=EMBEDDED,
        min_length=1,
    )
    revision: str | None = option(
        "branch, tag or commit of a hub model; every node fetches the commit that it names when "
        "the application is built",
        default=None,
        shown="none: the hub's `main`",
        min_length=1,
        max_length=256,
    )
    served_model_name: str | None = option(
        "name that clients ask for",
        default=None,
        shown="name of the model's folder, or its hub id",
        min_length=1,
        max_length=256,
    )
    dtype: Literal["auto", DType] = engine_option(
        "dtype",
        default="auto",
        also="; `auto` is `bfloat16` where the device computes in it, otherwise `float32`",
    )
    device: Literal["auto", Device] = engine_option(
        "device",
        default="auto",
        also="; `auto` is `cuda` where there is an NVIDIA GPU; set it by hand where the head node "
        "has other devices than the workers",
    )
    load_format: LoadFormat = engine_option("load_format")
    generation_config: Literal["use", "ignore"] = option(
        "whether the sampling parameters in the model's generation_config.json are defaults of "
        "requests; the ends of answers that it names count either way",
        default="use",
    )
    tensor_parallel_size: int = engine_option("tensor_parallel_size")
    placement_strategy: PlacementStrategy = engine_option("placement_strategy")
    block_size: int = engine_option("block_size")
    num_blocks: int | None = engine_option(
        "num_blocks", default=None, shown="as many as `kv_cache_gib` holds"
    )
    kv_cache_gib: float | None = engine_option(
        "kv_cache_bytes",
        default=None,
        shown=f"{CPU_KV_CACHE_BYTES / (1 << 30):g} on a CPU, what `gpu_memory_fraction` leaves of "
        "a GPU",
        gt=0,
        le=1024,
        allow_inf_nan=False,
    )
    gpu_memory_fraction: float = engine_option("gpu_memory_fraction")
    swap_gib: float | None = engine_option(
        "swap_bytes",
        default=None,
        shown="0 on a CPU; on a GPU 0.6 of the node's object store, by GPUs, and at most 16",
        ge=0,
        le=1024,
        allow_inf_nan=False,
    )
    memory_policy: MemoryPolicy = engine_option("memory_policy")
    preemption: PreemptionPolicy = engine_option("preemption")
    queue_policy: QueuePolicy = engine_option("queue_policy")
    watermark: float = engine_option("watermark")
    growth_blocks: float = engine_option("growth_blocks")
    max_overtakes: int = engine_option("max_overtakes")
    prompt_share: float = engine_option("prompt_share")
    fills_steps: bool | None = engine_option(
        "fills_steps", default=None, shown="false on a CPU, true on a GPU"
    )
    prefix_cache: bool = engine_option("prefix_cache")
    pinned_prefix_share: float = engine_option("pinned_prefix_share")
    max_pinned_prefixes: int = engine_option("max_pinned_prefixes")
    pinned_prefixes: tuple[PinnedPrefixOption, ...] = engine_option(
        "pinned_prefixes", strict=False, shown="none"
    )
    max_num_seqs: int | None = engine_option(
        "max_num_seqs",
        default=None,
        shown=f"{by_device(DEFAULT_MAX_NUM_SEQS)}; at most `max_num_batched_tokens`",
    )
    max_num_batched_tokens: int | None = engine_option(
        "max_num_batched_tokens",
        default=None,
        shown=f"{by_device(DEFAULT_MAX_NUM_BATCHED_TOKENS)}; at least `max_num_seqs`",
    )
    lone_prompt_tokens: int = engine_option("lone_prompt_tokens")
    long_step_share: float = engine_option("long_step_share")
    late_plans: bool = engine_option("late_plans")
    inter_token_latency_ms: float | None = engine_option(
        "inter_token_latency_s",
        default=None,
        shown="none: steps take as long as they need",
        gt=0,
        le=60_000,
    )
    max_model_len: int | None = engine_option(
        "max_model_len", default=None, shown="the model's, as far as the KV cache holds it"
    )
    max_num_waiting: int = engine_option("max_num_waiting")
    max_waiting_tokens: int | None = engine_option(
        "max_waiting_tokens", default=None, shown="twice as many as the KV cache holds"
    )
    resume_timeout_s: float = engine_option("resume_timeout_s")
    max_resumes: int = engine_option("max_resumes")
    stream_interval_ms: float | None = option(
        "least time between two chunks of a stream, the first one excepted; longer ones "
        "save CPU time",
        default=None,
        shown=f"{by_device(STREAM_PART_MS)} for each open stream of an ingress, and at most "
        f"{by_device(DEFAULT_STREAM_INTERVAL_MS)}",
        ge=0,
        le=10_000,
        allow_inf_nan=False,
    )
    drain_s: float = option(
        "time that open requests have to end when their engine replica is stopped, by a redeploy, "
        "by fewer replicas or with the server; with another replica, what is left goes on there",
        default=30.0,
        ge=0,
        le=3600,
        allow_inf_nan=False,
    )
    start_wait_s: float = option(
        "time that a request waits for an engine replica to start while none runs, as with "
        "`min_replicas: 0`, or `resume_timeout_s` if that is longer; after it the answer is 503 "
        "with `Retry-After`",
        default=0.0,
        shown="0: the server is not ready without a replica",
        ge=0,
        le=3600,
        allow_inf_nan=False,
    )
    num_threads: int = engine_option("num_threads")
    compiled_kernels: bool = engine_option("compiled_kernels")
    peer_memory: bool = engine_option("peer_memory")
    cache_folder: PathOption = option(
        "where the embedded model, those of buckets and converted ones are kept",
        default_factory=default_cache,
        shown="`$XDG_CACHE_HOME/pagoda`, or `~/.cache/pagoda`",
    )
    step_deadline_s: float = engine_option("step_deadline_s")
    ping_period_s: float = engine_option("ping_period_s")
    ping_timeout_s: float = engine_option("ping_timeout_s")
    start_deadline_s: float = engine_option("start_deadline_s")
    start_attempts: int = engine_option("start_attempts")
    unknown_parameters: Literal["reject", "ignore"] = option(
        "what happens to a request with a field that the API does not know: an error, or it is "
        "served without the field",
        default="reject",
    )
    tool_call_format: ToolCallFormat = option(
        "how the model writes calls of tools; `auto` is what its chat template says, or "
        "`smollm2`: a system message describes the tools",
        default="auto",
    )
    reasoning_format: ReasoningFormat = option(
        "what is split off an answer as reasoning: `think` what stands between `<think>` and "
        "`</think>` at its beginning, `none` nothing; `auto` is what the chat template says",
        default="auto",
    )
    api_keys_file: PathOption | None = option(
        "file with one accepted API key per line, and behind it, if they are to be limited, what "
        "its requests may take: see [serving a model](serving-a-model.md#api-keys)",
        default=None,
        shown="none: everyone is served",
    )
    operator_keys_file: PathOption | None = option(
        "file with one key per line for `/metrics`, `/admin/` and all that the page `/ui` can "
        "show, which tenants' keys never open",
        default=None,
        shown="none: open to callers on the server's machine where there are no keys at all and no "
        "HAProxy, else to nobody",
    )
    access_log: Literal["off", "generation"] = option(
        "a line in the log for each generation: how long it took and how many tokens it had, "
        "without its texts",
        default="off",
    )
    metrics: MetricsOption = MetricsOption()
    tracing: TracingOption = TracingOption()
    ui: PageOption = PageOption()
    cors_origins: tuple[_Origin, ...] = option(
        "origins, such as `https://chat.example.com`, whose pages may call the API from a browser; "
        "`*` for all",
        default=(),
        strict=False,
        shown="none",
    )
    flight_recorder: FlightRecorderOption = FlightRecorderOption()
    limits: Limits = Limits()
    deadlines: DeadlineOptions = DeadlineOptions()

    @property
    def model_id(self) -> str:
        """The name that clients ask for."""
        if self.served_model_name is not None:
            return self.served_model_name
        if self.model == EMBEDDED:
            return embedded.SMOLLM2.name
        if is_url(self.model):
            return PurePosixPath(self.model).name
        folder = Path(self.model).expanduser()
        if folder.is_file():
            return folder.stem
        return folder.resolve().name if folder.exists() else self.model


# options that are groups of options
NESTED: Mapping[str, type[BaseModel]] = {
    "limits": Limits,
    "deadlines": DeadlineOptions,
    "flight_recorder": FlightRecorderOption,
    "metrics": MetricsOption,
    "tracing": TracingOption,
    "ui": PageOption,
}


def parse_config(args: dict[str, Any]) -> AppConfig:
    """Check the application's `args`.

    Raises:
        ConfigError: naming every bad value, and for unknown options the nearest known one.
    """
    try:
        return AppConfig.model_validate(args)
    except ValidationError as error:
        raise ConfigError("; ".join(_describe(item) for item in error.errors())) from None


def _describe(item: Any) -> str:
    name = ".".join(str(part) for part in item["loc"]) or "args"
    if item["type"] != "extra_forbidden":
        return f"{name} is {item['input']!r:.100}: {item['msg']}{_nearest_choice(item)}"
    known = _known_options()
    nearest = get_close_matches(name.rpartition(".")[2], known, n=1)
    if nearest:
        return f"unknown option {name!r}; did you mean {known[nearest[0]]!r}?"
    return f"unknown option {name!r}; known are {', '.join(known.values())}"


def _nearest_choice(item: Any) -> str:
    if item["type"] != "literal_error":
        return ""
    choices = re.findall(r"'(\w+)'", item["ctx"]["expected"])
    nearest = get_close_matches(str(item["input"])[:100], choices, n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


def _known_options() -> dict[str, str]:
    """Last part of an option's name -> its whole name."""
    parts = {
        name: f"{part}.{name}" for part, model in NESTED.items() for name in model.model_fields
    }
    return {name: name for name in AppConfig.model_fields} | parts
