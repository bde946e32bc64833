"""The settings of one engine replica."""

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

from engine.config.documented import documented
from engine.config.model import ModelConfig
from engine.config.scheduler import SchedulerConfig

DType = Literal["float32", "float16", "bfloat16"]
Device = Literal["cpu", "cuda"]
LoadFormat = Literal["safetensors", "dummy"]
# as Ray names them
PlacementStrategy = Literal["STRICT_PACK", "PACK", "SPREAD"]

DTYPE_BYTES: dict[DType, int] = {"float32": 4, "float16": 2, "bfloat16": 2}

# size of the KV cache on a CPU unless it is configured: its memory is not the engine's to share out
CPU_KV_CACHE_BYTES = 512 << 20

_SCHEDULER_FIELDS = tuple(each.name for each in fields(SchedulerConfig))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixConfig:
    """A prefix that is pinned from the start of a replica.

    Attributes:
        token_ids: its tokens; those of its full blocks are kept.
        ttl_s: seconds from then on; None for as long as the engine lives.
        salt: the tenant that it is for.
    """

    name: str
    token_ids: tuple[int, ...]
    ttl_s: float | None = None
    salt: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine replica, checked and complete; what the scheduler reads is nested.

    Make it with `from_options`, and change it with `with_options`, which take the fields of
    `SchedulerConfig` as well. `num_blocks` 0 has the worker compute it from `kv_cache_bytes`;
    `kv_cache_bytes` 0 has it measure what a GPU has left, and is `CPU_KV_CACHE_BYTES` elsewhere.
    `max_waiting_tokens` 0 is twice what the pool holds. `swap_bytes` None takes a share of the
    object store, where the replica has one.
    """

    model_path: str = field(
        metadata=documented("folder with config.json, tokenizer.json and safetensors")
    )
    model: ModelConfig = field(metadata=documented("shape of the model"))
    scheduler: SchedulerConfig = field(metadata=documented("settings of the scheduler"))
    dtype: DType = field(
        metadata=documented("type of the numbers in weights, activations and KV cache")
    )
    device: Device = field(metadata=documented("where the model runs"))
    load_format: LoadFormat = field(
        default="safetensors",
        metadata=documented(
            "where the weights come from; `dummy` draws random ones, for benchmarks of a model "
            "that is not there"
        ),
    )
    tensor_parallel_size: int = field(
        default=1,
        metadata=documented(
            "GPUs (or CPU processes) that share every layer; each is a rank", ge=1, le=64
        ),
    )
    placement_strategy: PlacementStrategy = field(
        default="STRICT_PACK",
        metadata=documented(
            "nodes that the ranks of a replica run on: one (`STRICT_PACK`), as few as possible "
            "(`PACK`), or as many as possible (`SPREAD`)"
        ),
    )
    block_size: int = field(default=16, metadata=documented("tokens per block", ge=1, le=256))
    num_blocks: int = field(
        default=0, metadata=documented("blocks of the KV cache on each rank", ge=1, lt=1 << 31)
    )
    kv_cache_bytes: int = field(default=0, metadata=documented("size of the KV cache on each rank"))
    gpu_memory_fraction: float = field(
        default=0.9,
        metadata=documented(
            "share of a GPU's memory for weights, activations, CUDA graphs and KV cache together",
            gt=0,
            le=1,
        ),
    )
    swap_bytes: int | None = field(
        default=0,
        metadata=documented(
            "swap space: memory of Ray's object store, for each rank, that holds the KV cache of "
            "preempted requests, and prefixes that the KV cache has no room for any more; 0 for "
            "none"
        ),
    )
    max_num_seqs: int = field(metadata=documented("sequences in a batch", ge=1, le=4096))
    max_num_waiting: int = field(
        default=1024,
        metadata=documented(
            "requests that may wait for a place in the batch; further ones are refused with 429; "
            "API keys that wait beside each other share this by their weights",
            ge=1,
            le=1 << 20,
        ),
    )
    max_waiting_tokens: int = field(
        default=0,
        metadata=documented(
            "tokens of the prompts that may wait for a place in the batch; further ones are "
            "refused with 429; shared by weights as well",
            ge=1,
            lt=1 << 31,
        ),
    )
    num_threads: int = field(
        default=1, metadata=documented("compute threads of a CPU worker", ge=1, le=1024)
    )
    run_ahead: int = field(
        default=2, metadata=documented("steps that are in flight at once; 1 waits for each result")
    )
    late_plans: bool = field(
        default=True,
        metadata=documented(
            "plan a step only when the device is about to need it, so that a request which comes "
            "during a step is in the next one; without it a step is planned when the one before "
            "begins, and requests wait for both"
        ),
    )
    compiled_kernels: bool = field(
        default=True,
        metadata=documented(
            "compile kernels and use them: in C for CPUs, in Triton for GPUs; otherwise plain "
            "PyTorch computes"
        ),
    )
    graphs: bool = field(
        default=True,
        metadata=documented("capture small steps as CUDA graphs and replay them, on a GPU"),
    )
    peer_memory: bool = field(
        default=True,
        metadata=documented(
            "let the GPUs that share a model on one node write into each other's memory to sum "
            "few rows; otherwise NCCL sums them"
        ),
    )
    step_deadline_s: float = field(
        default=30.0,
        metadata=documented(
            "longest time that a step may take; if a rank has not answered by then, the engine's "
            "processes are started again",
            gt=0,
            le=86_400,
        ),
    )
    ping_period_s: float = field(
        default=2.0,
        metadata=documented(
            "pause between two questions to each process of the engine whether it lives",
            gt=0,
            le=3600,
        ),
    )
    ping_timeout_s: float = field(
        default=6.0,
        metadata=documented(
            "longest time that a process may take to answer; one that is frozen, busy or idle, is "
            "noticed at the latest after this time and `ping_period_s`",
            gt=0,
            le=3600,
        ),
    )
    start_deadline_s: float = field(
        default=1800.0,
        metadata=documented(
            "longest time that one start of the engine's processes may take, loading and warm-up "
            "included; the other limits count only after it",
            gt=0,
            le=86_400,
        ),
    )
    start_attempts: int = field(
        default=3,
        metadata=documented(
            "starts of the engine's processes in a row that may fail, or be followed by a death "
            "within half a minute, until the replica gives up: at its own start that ends it, "
            "later Serve replaces it",
            ge=1,
            le=100,
        ),
    )
    pinned_prefixes: tuple[PrefixConfig, ...] = field(
        default=(),
        metadata=documented("prefixes that are pinned before the first request is served"),
    )

    @property
    def token_bytes(self) -> int:
        """Bytes that the keys and values of a token take on one rank, before any is released."""
        value_bytes = DTYPE_BYTES[self.dtype]
        return self.model.kv_bytes_per_token(value_bytes, self.tensor_parallel_size)

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Shape of a block on one rank: [layers of a group, 2, kv_heads, block_size, head_dim].

        Raises:
            ConfigError: if the ranks cannot share out the heads.
        """
        num_kv_heads = self.model.kv_heads_per_rank(self.tensor_parallel_size)
        num_layers, head_dim = self.model.kv_groups.num_layers, self.model.head_dim
        return num_layers, 2, num_kv_heads, self.block_size, head_dim

    @property
    def block_bytes(self) -> int:
        """Bytes of a block on one rank."""
        return math.prod(self.block_shape) * DTYPE_BYTES[self.dtype]

    @classmethod
    def from_options(cls, *, model: ModelConfig, **options: Any) -> Self:
        """Make a configuration from options by name, those of the scheduler among them.

        Args:
            model: ends its sequences with its own ids, unless `eos_token_ids` says others.
            options: fields of `EngineConfig`, without `scheduler`, and of `SchedulerConfig`.

        Raises:
            TypeError: if an option is not known or a needed one is missing.
        """
        inner, outer = _split(options)
        scheduler = SchedulerConfig(**{"eos_token_ids": model.eos_token_ids, **inner})
        return cls(model=model, scheduler=scheduler, **outer)

    def with_options(self, **changes: Any) -> Self:
        """Make a configuration that differs in some options, those of the scheduler among them.

        Raises:
            TypeError: if an option is not known.
        """
        inner, outer = _split(changes)
        return replace(self, scheduler=replace(self.scheduler, **inner), **outer)

    def options(self) -> dict[str, Any]:
        """Every option by name, those of the scheduler among them."""
        outer = {each.name: getattr(self, each.name) for each in fields(self)}
        inner = outer.pop("scheduler")
        return outer | {name: getattr(inner, name) for name in _SCHEDULER_FIELDS}


def _split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the scheduler, and the others."""
    inner = {name: value for name, value in options.items() if name in _SCHEDULER_FIELDS}
    return inner, {name: value for name, value in options.items() if name not in inner}
