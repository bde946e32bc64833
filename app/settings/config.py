"""The application's configuration: `args` of serve_config.yaml, checked."""

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from app.models import embedded
from app.models.cache_folder import default_cache
from app.models.embedded import EMBEDDED
from app.protocol.chat_request import Message
from app.protocol.prefix_request import PREFIX_NAME
from engine.config import LoadFormat, MemoryPolicy, PreemptionPolicy
from engine.errors import ConfigError

_FolderOption = Annotated[Path, Strict(False)]


class Limits(BaseModel):
    """What one HTTP request may ask for.

    Attributes:
        max_body_mib: largest request body in MiB.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    max_body_mib: float = Field(default=4.0, gt=0, le=64)


class FlightRecorderOption(BaseModel):
    """Traces of what was asked and what became of it, without texts and tokens.

    Attributes:
        folder: where each ingress replica writes its own; null records nothing.
        max_mib: what a replica keeps there in MiB; the oldest goes first.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    folder: _FolderOption | None = None
    max_mib: float = Field(default=256.0, ge=1, le=1 << 20, allow_inf_nan=False)


class PinnedPrefixOption(BaseModel):
    """A text with which many prompts begin, kept in the KV pool from the start.

    Attributes:
        name: unique among the options.
        text, file, messages: the prefix of completions as it is or in a UTF-8 file, or the first
            messages of conversations; exactly one of them.
        ttl_s: seconds until it is given up; null for never.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str = Field(pattern=PREFIX_NAME)
    text: str | None = Field(default=None, min_length=1)
    file: _FolderOption | None = None
    messages: tuple[Message, ...] | None = Field(default=None, min_length=1, strict=False)
    ttl_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if sum(value is not None for value in (self.text, self.file, self.messages)) != 1:
            raise PydanticCustomError("content", "give exactly one of text, file and messages")
        return self


class AppConfig(BaseModel):
    """All options of one application; README.md describes each.

    Attributes:
        model: "embedded", a local folder or a Hugging Face hub id.
        served_model_name: the name that clients ask for; null derives it from `model`.
        dtype: of weights and KV pool; auto is bfloat16 where the device computes in it.
        device: auto is cuda where there is an NVIDIA device.
        load_format: dummy fills the model with random weights, for benchmarks.
        tensor_parallel_size: ranks that share every layer.
        block_size: tokens per block of the KV pool.
        num_blocks: blocks of the KV pool on each rank; null derives it from `kv_cache_gib`.
        kv_cache_gib: memory of the KV pool on each rank in GiB; null takes what
            `gpu_memory_fraction` leaves of a GPU, and 0.5 on a CPU.
        gpu_memory_fraction: share of a GPU's memory for weights, steps and KV pool together.
        swap_gib: CPU memory for preempted sequences on each rank in GiB; 0 never swaps.
        memory_policy: how KV memory is given out: paged, or as one of the systems that the paper
            compares with, which reserve it in advance.
        preemption: how a preempted request comes back: from the swap space, by recomputation, or
            by what is cheaper for it.
        watermark: share of the KV pool that new requests leave free for running ones.
        growth_blocks: blocks that they leave free for each running sequence, where that is more.
        max_overtakes: later requests that may enter while one is swapped out.
        prompt_share: share of a step's tokens that one prompt takes while others wait.
        prefix_cache: whether the KV pool keeps blocks of earlier prompts and answers and uses them
            again.
        pinned_prefix_share: share of the KV pool that pinned prefixes may hold.
        pinned_prefixes: prefixes that are pinned before the first request is served.
        max_num_seqs: sequences in the batch at once; null takes 64 on a CPU and 256 on a GPU.
        max_num_batched_tokens: token budget of one step; null takes 256 on a CPU and 2048 on a
            GPU, or as many as there are sequences.
        inter_token_latency_ms: milliseconds that a step may take while requests wait for their next
            token, by which prompts beside them are cut; null does not care.
        max_model_len: longest prompt plus output in tokens; null takes the model's.
        max_num_waiting: requests that may wait for a place in the batch.
        stream_interval_ms: least time between two chunks of a stream, the first one excepted;
            null is 20, and 50 where the model runs on the CPU, which has no time to give away.
        num_threads: compute threads of a CPU worker.
        compiled_kernels: whether kernels may be compiled, in C for CPUs and Triton for GPUs.
        cache_folder: where the embedded model is kept.
        unknown_parameters: whether a request field that the API does not know is an error.
        flight_recorder: traces for `python -m load_tests whatif`.
        api_keys_file: file with one accepted API key per line; null accepts every caller.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())

    model: str = Field(default=EMBEDDED, min_length=1)
    served_model_name: str | None = Field(default=None, min_length=1, max_length=256)
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    load_format: LoadFormat = "safetensors"
    tensor_parallel_size: int = Field(default=1, ge=1, le=64)
    block_size: int = Field(default=16, ge=1, le=256)
    num_blocks: int | None = Field(default=None, ge=1, lt=1 << 31)
    kv_cache_gib: float | None = Field(default=None, gt=0, le=1024, allow_inf_nan=False)
    gpu_memory_fraction: float = Field(default=0.9, gt=0, le=1, allow_inf_nan=False)
    swap_gib: float = Field(default=0.0, ge=0, le=1024, allow_inf_nan=False)
    memory_policy: MemoryPolicy = "paged"
    preemption: PreemptionPolicy = "auto"
    watermark: float = Field(default=0.01, ge=0, le=0.5, allow_inf_nan=False)
    growth_blocks: float = Field(default=0.5, ge=0, le=64, allow_inf_nan=False)
    max_overtakes: int = Field(default=0, ge=0, le=4096)
    prompt_share: float = Field(default=0.5, gt=0, le=1, allow_inf_nan=False)
    prefix_cache: bool = True
    pinned_prefix_share: float = Field(default=0.0, ge=0, le=0.9)
    pinned_prefixes: tuple[PinnedPrefixOption, ...] = Field(default=(), strict=False)
    max_num_seqs: int | None = Field(default=None, ge=1, le=4096)
    max_num_batched_tokens: int | None = Field(default=None, ge=1, le=1 << 20)
    inter_token_latency_ms: float | None = Field(default=None, gt=0, le=60_000, allow_inf_nan=False)
    max_model_len: int | None = Field(default=None, ge=2, lt=1 << 31)
    max_num_waiting: int = Field(default=1024, ge=1, le=1 << 20)
    stream_interval_ms: float | None = Field(default=None, ge=0, le=10_000, allow_inf_nan=False)
    num_threads: int = Field(default=1, ge=1, le=1024)
    compiled_kernels: bool = True
    cache_folder: _FolderOption = Field(default_factory=default_cache)
    unknown_parameters: Literal["reject", "ignore"] = "reject"
    api_keys_file: _FolderOption | None = None
    flight_recorder: FlightRecorderOption = FlightRecorderOption()
    limits: Limits = Limits()

    @property
    def model_id(self) -> str:
        """The name that clients ask for."""
        if self.served_model_name is not None:
            return self.served_model_name
        if self.model == EMBEDDED:
            return embedded.SMOLLM2.name
        folder = Path(self.model).expanduser()
        return folder.resolve().name if folder.exists() else self.model


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
    nested: dict[str, type[BaseModel]] = {"limits": Limits, "flight_recorder": FlightRecorderOption}
    parts = {
        name: f"{part}.{name}" for part, model in nested.items() for name in model.model_fields
    }
    return {name: name for name in AppConfig.model_fields} | parts
