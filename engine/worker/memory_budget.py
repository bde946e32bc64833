"""Shares out the memory of a device.

Of the configured fraction of the device, weights take what they take, the activations of the
largest step and the CUDA graphs are measured or estimated, and the KV pool gets the rest.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.config import CPU_KV_CACHE_BYTES, EngineConfig
from engine.errors import ConfigError
from engine.model.model import Model
from engine.worker.graphs.cuda_graphs import common_shapes
from engine.worker.warm_up import WarmUp
from kernels.backend import KernelBackend
from kernels.runtime import Runtime

# what the driver keeps for a graph of some hundred nodes, seen on an H100
_GRAPH_BYTES = 8 << 20
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """Bytes of a device by use.

    Attributes:
        total: of the device; 0 where its memory is not shared out, because the pool's size is
            configured or other processes use the device too. Then activations and graphs are 0.
        weights: of the model; 0 where the device cannot report its memory.
        activations: the most that a step takes beside the weights.
        graphs: memory of the captured CUDA graphs.
        blocks: the KV pool.
    """

    total: int = 0
    weights: int = 0
    activations: int = 0
    graphs: int = 0
    blocks: int

    def lines(self, token_bytes: int, max_model_len: int) -> Iterator[str]:
        """Lines for the log: GiB by use, then how many sequences fit."""
        parts = ("total", "weights", "activations", "graphs", "blocks")
        for part in parts:
            yield f"{part:12}{getattr(self, part) / _GIB:8.2f} GiB"
        num_tokens = self.blocks // token_bytes
        yield f"{num_tokens} tokens of KV memory:"
        length = 512
        while length < max_model_len:
            yield f"{num_tokens // length:12} sequences of {length} tokens"
            length *= 2
        yield f"{num_tokens // max_model_len:12} sequences of {max_model_len} tokens"


def share_out(
    config: EngineConfig,
    runtime: Runtime,
    backend: KernelBackend,
    model: Model,
    weight_bytes: int,
) -> MemoryBudget:
    """Measure what a step takes and leave the rest of `gpu_memory_fraction` to the KV pool.

    Nothing is measured if the size of the pool is configured.

    Args:
        weight_bytes: of the model, which is on the device already.

    Raises:
        ConfigError: if nothing is left.
    """
    memory = runtime.memory()
    if config.num_blocks or config.kv_cache_bytes or memory is None:
        return MemoryBudget(
            weights=weight_bytes, blocks=config.kv_cache_bytes or CPU_KV_CACHE_BYTES
        )
    warm_up = WarmUp(config, backend, model)
    activations = runtime.peak_bytes(warm_up.prefill)
    graphs = 0
    if config.graphs and runtime.captures:
        shapes = common_shapes(config)
        mixed = activations
        if config.scheduler.max_step_tokens > config.scheduler.max_num_batched_tokens:
            # no graph is as large as the step of a lone prompt
            mixed = runtime.peak_bytes(warm_up.prefill_beside)
        # all graphs share the memory of the largest one
        largest = max(mixed, runtime.peak_bytes(warm_up.decode))
        graphs = largest + len(shapes) * _GRAPH_BYTES
    allowed = int(memory.total * config.gpu_memory_fraction)
    blocks = allowed - memory.used - activations - graphs
    if blocks <= 0:
        raise ConfigError(
            f"gpu_memory_fraction={config.gpu_memory_fraction} is {allowed / _GIB:.2f} GiB, but "
            f"{memory.used / _GIB:.2f} GiB are in use with the weights and a step takes "
            f"{(activations + graphs) / _GIB:.2f} GiB; raise it, lower max_num_batched_tokens, "
            "lone_prompt_tokens or max_num_seqs, or share the model between more ranks"
        )
    return MemoryBudget(
        total=memory.total,
        weights=weight_bytes,
        activations=activations,
        graphs=graphs,
        blocks=blocks,
    )
