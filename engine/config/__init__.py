"""Frozen configuration: the shape of a model, the settings of an engine and of its scheduler.

Every field of `EngineConfig`, `SchedulerConfig` and `ResumeConfig` carries its default, its range
and its text as metadata (see `documented`); the application's options and docs/configuration.md are
made from them.
"""

from engine.config.documented import bounds_of, doc_of, documented
from engine.config.engine import (
    CPU_KV_CACHE_BYTES,
    DTYPE_BYTES,
    Device,
    DType,
    EngineConfig,
    LoadFormat,
    PlacementStrategy,
    PrefixConfig,
)
from engine.config.kv_groups import KVGroups, longest_sequence, window_blocks
from engine.config.model import ModelConfig
from engine.config.model_spec import ExpertsSpec, LayerSpec, ModelSpec, RopeConfig
from engine.config.resume import ResumeConfig
from engine.config.scheduler import (
    MemoryPolicy,
    PreemptionPolicy,
    QueuePolicy,
    SchedulerConfig,
)
from engine.config.swap_layout import HEADER_BYTES, headers_start, swap_arena_bytes

__all__ = [
    "CPU_KV_CACHE_BYTES",
    "DTYPE_BYTES",
    "HEADER_BYTES",
    "DType",
    "Device",
    "EngineConfig",
    "ExpertsSpec",
    "KVGroups",
    "LayerSpec",
    "LoadFormat",
    "MemoryPolicy",
    "ModelConfig",
    "ModelSpec",
    "PlacementStrategy",
    "PreemptionPolicy",
    "PrefixConfig",
    "QueuePolicy",
    "ResumeConfig",
    "RopeConfig",
    "SchedulerConfig",
    "bounds_of",
    "doc_of",
    "documented",
    "headers_start",
    "longest_sequence",
    "swap_arena_bytes",
    "window_blocks",
]
