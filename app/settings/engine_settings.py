"""Derives the engine's settings from the application's options and the model's shape."""

import logging
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.settings.config import DEFAULT_MAX_NUM_BATCHED_TOKENS, DEFAULT_MAX_NUM_SEQS, AppConfig
from app.settings.option import ENGINE_FIELDS
from engine.config import (
    CPU_KV_CACHE_BYTES,
    DTYPE_BYTES,
    Device,
    DType,
    EngineConfig,
    ModelConfig,
    longest_sequence,
)
from engine.errors import ConfigError
from engine.integers import div_ceil

logger = logging.getLogger(__name__)

# options that the engine has under the same name in another form: the shape of the model, and
# prefixes as token ids
_MADE_OTHERWISE = {"model", "pinned_prefixes"}

# how Linux names the instructions on x86 and on Arm
_BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}


def to_engine_config(config: AppConfig, folder: Path, model: ModelConfig) -> EngineConfig:
    """Fill in what was left automatic and check that options and model fit together.

    Raises:
        ConfigError: naming the two values that contradict each other and what to change.
    """
    _check_split(model, config.tensor_parallel_size)
    device = _device(config)
    max_num_seqs, max_num_batched_tokens = _batch_limits(config, device)
    dtype = _dtype(config, device)
    _check_swap(config, model, device, DTYPE_BYTES[dtype])
    num_blocks = _num_blocks(config, model, device, DTYPE_BYTES[dtype])
    changed = {
        "device": device,
        "dtype": dtype,
        "num_blocks": num_blocks,
        "kv_cache_bytes": _kv_cache_bytes(config, device),
        "swap_bytes": _swap_bytes(config, device),
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "fills_steps": device != "cpu" if config.fills_steps is None else config.fills_steps,
        "max_waiting_tokens": config.max_waiting_tokens or 0,
        "max_model_len": _max_model_len(config, model),
        "clips_context": config.max_model_len is None,
        "inter_token_latency_s": (config.inter_token_latency_ms or 0.0) / 1e3,
    }
    engine = EngineConfig.from_options(
        model_path=str(folder), model=model, **(_same(config) | changed)
    )
    if num_blocks:
        # otherwise the workers measure what there is, and fit the context to it
        engine = _fitted(config, engine)
        engine.scheduler.check_pinned_share(num_blocks, config.block_size)
    _check_reserved(config, engine.scheduler.max_model_len, num_blocks)
    return engine


def _same(config: AppConfig) -> dict[str, Any]:
    """Options that the engine has under the same name, as they are."""
    names = ENGINE_FIELDS.keys() & AppConfig.model_fields.keys() - _MADE_OTHERWISE
    return {name: getattr(config, name) for name in names}


def _batch_limits(config: AppConfig, device: Device) -> tuple[int, int]:
    """Sequences of the batch and tokens of a step; what is not set fits what is."""
    num_seqs, num_tokens = DEFAULT_MAX_NUM_SEQS[device], DEFAULT_MAX_NUM_BATCHED_TOKENS[device]
    given_seqs, given_tokens = config.max_num_seqs, config.max_num_batched_tokens
    if given_seqs is not None and given_tokens is not None and given_tokens < given_seqs:
        raise ConfigError(
            f"max_num_batched_tokens {given_tokens} is below max_num_seqs {given_seqs}: a step "
            "takes one token of every sequence; raise the one or lower the other"
        )
    num_seqs = given_seqs or min(num_seqs, given_tokens or num_seqs)
    return num_seqs, given_tokens or max(num_tokens, num_seqs)


def _check_split(model: ModelConfig, size: int) -> None:
    """Every rank takes the same share of heads and of the feed-forward layer.

    Key-value heads may be fewer than ranks, which then share them.
    """
    parts = {"attention heads": model.num_heads}
    experts = model.spec.experts
    if any(model.spec.layer(layer).mlp != "experts" for layer in range(model.num_layers)):
        parts["intermediate rows"] = model.intermediate_size
    if experts is not None and experts.intermediate_size % size:
        parts["experts"] = experts.num_experts
    if experts is not None and experts.shared_size:
        parts["rows of the shared expert"] = experts.shared_size
    for name, count in parts.items():
        if count % size:
            raise ConfigError(
                f"tensor_parallel_size {size} does not divide the model's {count} {name}; "
                "set it to a common divisor of "
                + " and ".join(f"{count} {name}" for name, count in parts.items())
            )
    model.kv_heads_per_rank(size)


def _device(config: AppConfig) -> Device:
    if config.device != "auto":
        return config.device
    return "cuda" if any(Path("/dev").glob("nvidia[0-9]*")) else "cpu"


def _dtype(config: AppConfig, device: Device) -> DType:
    if config.dtype != "auto":
        return config.dtype
    return "bfloat16" if device == "cuda" or _cpu_has_bfloat16() else "float32"


def _cpu_has_bfloat16() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.system() == "Darwin" and platform.machine() == "arm64"
    return not _BFLOAT16_FLAGS.isdisjoint(cpuinfo.read_text(encoding="utf-8").split())


def _check_swap(
    config: AppConfig, model: ModelConfig, device: Device, bytes_per_value: int
) -> None:
    """Swap space must hold a block if it is there, and be there if it is to be used."""
    if config.preemption == "swap" and _swap_bytes(config, device) == 0:
        raise ConfigError(
            "preemption swap needs swap space, but swap_gib is 0; raise it or set preemption to "
            "auto"
        )
    block_bytes = _block_bytes(config, model, bytes_per_value)
    if config.swap_gib and int(config.swap_gib * (1 << 30)) < block_bytes:
        raise ConfigError(
            f"swap_gib {config.swap_gib} does not hold one block: {config.block_size} tokens of "
            f"this model take {block_bytes / (1 << 30):.4g} GiB; raise it or set it to 0"
        )


def _check_reserved(config: AppConfig, max_model_len: int, num_blocks: int) -> None:
    """What reserves memory never preempts, and gives out powers of two of blocks."""
    policy = config.memory_policy
    if policy == "paged":
        return
    if config.preemption != "auto" or config.swap_gib:
        raise ConfigError(
            f"memory_policy {policy} never preempts, so preemption {config.preemption} and "
            f"swap_gib {config.swap_gib or 0:g} have no use; leave them at auto and 0 or set "
            "memory_policy to paged"
        )
    largest = 1 << (div_ceil(max_model_len, config.block_size) - 1).bit_length()
    if policy in ("reserved_max", "faster_transformer") and 0 < num_blocks < largest:
        raise ConfigError(
            f"memory_policy {policy} reserves {largest} blocks for every sequence of max_model_len "
            f"{max_model_len}, and the KV pool has {num_blocks}; raise kv_cache_gib (or "
            "num_blocks), or lower max_model_len"
        )


def _block_bytes(config: AppConfig, model: ModelConfig, bytes_per_value: int) -> int:
    token_bytes = model.kv_bytes_per_token(bytes_per_value, config.tensor_parallel_size)
    return token_bytes * config.block_size


def _kv_cache_bytes(config: AppConfig, device: Device) -> int:
    """Bytes of the KV cache; 0 where the worker measures what the GPU has left."""
    if config.kv_cache_gib is None:
        return 0 if device == "cuda" else CPU_KV_CACHE_BYTES
    return int(config.kv_cache_gib * (1 << 30))


def _swap_bytes(config: AppConfig, device: Device) -> int | None:
    """Bytes of the swap space; None where the replica takes a share of the object store."""
    if config.swap_gib is not None:
        return int(config.swap_gib * (1 << 30))
    return None if device == "cuda" and config.memory_policy == "paged" else 0


def _num_blocks(config: AppConfig, model: ModelConfig, device: Device, bytes_per_value: int) -> int:
    """Blocks of the KV cache; 0 where only the worker will know."""
    if config.num_blocks is not None:
        return config.num_blocks
    pool_bytes = _kv_cache_bytes(config, device)
    block_bytes = _block_bytes(config, model, bytes_per_value)
    num_blocks = pool_bytes // block_bytes
    if pool_bytes and num_blocks < 1:
        raise ConfigError(
            f"kv_cache_gib {pool_bytes / (1 << 30):g} does not hold one block: {config.block_size} "
            f"tokens of this model take {block_bytes / (1 << 30):.4g} GiB; raise it"
        )
    return num_blocks


def _max_model_len(config: AppConfig, model: ModelConfig) -> int:
    """Longest sequence in tokens, before it is fitted to the KV cache."""
    if config.max_model_len is None:
        return model.max_position
    if config.max_model_len > model.max_position:
        raise ConfigError(
            f"max_model_len {config.max_model_len} is above the model's {model.max_position} "
            f"tokens; lower it to {model.max_position} or leave it null"
        )
    return config.max_model_len


def _fitted(config: AppConfig, engine: EngineConfig) -> EngineConfig:
    """Clip the context to the KV cache, where it may be clipped."""
    num_slots = longest_sequence(
        engine.num_blocks,
        engine.block_size,
        engine.model.kv_groups.windows,
        engine.scheduler.max_step_tokens,
    )
    if config.max_model_len is not None and num_slots < config.max_model_len:
        raise ConfigError(_pool_too_small(config, engine.num_blocks, num_slots))
    scheduler = engine.scheduler.fitted(
        engine.num_blocks, engine.block_size, engine.model.kv_groups.windows
    )
    if scheduler is not engine.scheduler:
        logger.warning(
            "context_clipped max_model_len=%d model_max=%d reason=kv_pool raise=kv_cache_gib",
            scheduler.max_model_len,
            engine.scheduler.max_model_len,
        )
    return replace(engine, scheduler=replace(scheduler, clips_context=False))


def _pool_too_small(config: AppConfig, num_blocks: int, num_slots: int) -> str:
    assert config.max_model_len is not None
    if config.num_blocks is not None:
        option, needed = "num_blocks", str(div_ceil(config.max_model_len, config.block_size))
    else:
        # as many blocks as the longest sequence needs, in GiB rounded up to a hundredth
        bytes_per_block = _kv_cache_bytes(config, "cpu") / num_blocks
        blocks = div_ceil(config.max_model_len, config.block_size)
        option, needed = "kv_cache_gib", f"{blocks * bytes_per_block / (1 << 30) + 0.01:.2f}"
    return (
        f"the KV pool holds {num_slots} tokens ({num_blocks} blocks of {config.block_size}), fewer "
        f"than max_model_len {config.max_model_len}; raise {option} to {needed} or lower "
        "max_model_len"
    )
