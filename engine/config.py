"""Frozen configuration: the shape of a model and the settings of an engine."""

from dataclasses import dataclass
from typing import Literal

from engine.errors import ConfigError

DType = Literal["float32", "float16", "bfloat16"]
Device = Literal["cpu", "cuda"]
LoadFormat = Literal["safetensors", "dummy"]
MemoryPolicy = Literal[
    "paged", "reserved_oracle", "reserved_pow2", "reserved_max", "faster_transformer"
]
PreemptionPolicy = Literal["auto", "swap", "recompute"]

WATERMARK = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding.

    Attributes:
        theta: base of the frequencies.
        scaling: how positions beyond the trained context are mapped.
        factor: stretch of the context.
        low_freq_factor, high_freq_factor, original_max_position: `llama3` scaling only.
    """

    theta: float = 10000.0
    scaling: Literal["none", "linear", "llama3"] = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of a decoder-only transformer, see `engine.architectures`.

    Attributes:
        hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim: as published.
        vocab_size: rows of the embedding.
        max_position: longest context in tokens that the weights were made for.
        embedding_size: columns of the embedding, projected to `hidden_size` where they differ; 0
            for `hidden_size` itself.
        norm_first: whether norms come before attention and feed-forward network, not after them.
        attention_bias: whether query, key and value projections have a bias (Qwen2).
        output_bias: whether the attention's output projection has one too.
        tie_embeddings: whether the output layer is the embedding.
        eos_token_ids: ids that end a sequence.
        num_token_ids: ids that the tokenizer knows, the only ones that are ever chosen; 0 for all
            rows of the embedding.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    norm_eps: float
    rope: RopeConfig = RopeConfig()
    embedding_size: int = 0
    norm_first: bool = True
    attention_bias: bool = False
    output_bias: bool = False
    tie_embeddings: bool = False
    eos_token_ids: tuple[int, ...] = ()
    num_token_ids: int = 0

    @property
    def num_choices(self) -> int:
        """Columns of the logits."""
        return min(self.num_token_ids or self.vocab_size, self.vocab_size)

    @property
    def embedding_width(self) -> int:
        """Columns of the embedding."""
        return self.embedding_size or self.hidden_size

    def kv_bytes_per_token(self, bytes_per_value: int, tensor_parallel_size: int = 1) -> int:
        """Bytes that the keys and values of one token take on one rank."""
        return (
            2
            * self.num_layers
            * (self.num_kv_heads // tensor_parallel_size)
            * self.head_dim
            * bytes_per_value
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What the core must know; `EngineConfig.scheduler` derives it.

    Attributes:
        max_num_batched_tokens: token budget of one step.
        max_model_len: longest prompt plus output in tokens.
        eos_token_ids: ids that end a sequence unless it ignores them.
        memory_policy: paged, or a baseline of the paper that reserves for the longest output:
            known (oracle), rounded to a power of two (pow2) or the whole context (max);
            `faster_transformer` is max with whole batches.
        preemption: how a preempted group comes back; auto chooses for each.
        watermark, growth_blocks: what newcomers leave free of the paged pool, as a share of it and
            in blocks per sequence that is in it; the larger counts.
        max_overtakes: later requests that may enter while an earlier one is swapped out.
        prompt_share: share of the budget that one prompt takes of a step while another prompt
            could be prefilled too.
        prefix_cache: whether full blocks are kept for later prompts.
        inter_token_latency_s: seconds that a step may take where sequences decode beside prompts;
            0 does not care.
        pinned_prefix_share: share of the pool that pinned prefixes may hold; no request may need
            it, so the largest one that is served shrinks by as much.
    """

    max_num_batched_tokens: int
    max_model_len: int
    eos_token_ids: tuple[int, ...] = ()
    memory_policy: MemoryPolicy = "paged"
    preemption: PreemptionPolicy = "auto"
    watermark: float = WATERMARK
    growth_blocks: float = 0.5
    max_overtakes: int = 0
    prompt_share: float = 1.0
    prefix_cache: bool = True
    inter_token_latency_s: float = 0.0
    pinned_prefix_share: float = 0.0

    @property
    def max_chunk(self) -> int:
        """Tokens of `prompt_share`."""
        return max(1, int(self.max_num_batched_tokens * self.prompt_share))

    def num_pinnable(self, num_blocks: int) -> int:
        """Blocks of a pool of `num_blocks` that pinned prefixes may hold."""
        return int(num_blocks * self.pinned_prefix_share)

    def check_pinned_share(self, num_blocks: int, block_size: int) -> None:
        """Accept by returning a share for pinned prefixes that cannot starve the pool.

        Raises:
            ConfigError: if the longest sequence does not fit beside them and the watermark, or if
                nothing can be pinned at all.
        """
        share = self.pinned_prefix_share
        if not share:
            return
        if self.memory_policy != "paged" or not self.prefix_cache:
            raise ConfigError(
                f"pinned_prefix_share is {share}, but prefixes can be pinned only in paged memory "
                "with prefix_cache true; set it to 0"
            )
        num_pinned, num_kept_free = self.num_pinnable(num_blocks), int(num_blocks * self.watermark)
        num_left = num_blocks - num_pinned - num_kept_free
        num_needed = -(-self.max_model_len // block_size)
        if num_left < num_needed:
            raise ConfigError(
                f"pinned_prefix_share {share} leaves {num_left} of {num_blocks} blocks "
                f"({num_pinned} may be pinned, {num_kept_free} are kept free), but a sequence of "
                f"max_model_len {self.max_model_len} needs {num_needed}; lower pinned_prefix_share "
                "or max_model_len, or enlarge the pool"
            )


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
    """Settings of one engine replica, checked and complete.

    Attributes:
        model_path: folder with config.json and safetensors.
        tensor_parallel_size: ranks that share every layer.
        num_blocks: blocks of the KV pool on each rank; 0 derives it from `kv_cache_bytes`.
        kv_cache_bytes: memory of the KV pool on each rank; 0 takes what `gpu_memory_fraction`
            leaves, on a CPU half a GiB.
        gpu_memory_fraction: share of a GPU's memory that everything together may take.
        swap_bytes: CPU memory for preempted sequences on each rank.
        max_num_seqs: sequences in the batch at once.
        max_num_batched_tokens: token budget of one step.
        max_model_len: longest prompt plus output in tokens.
        max_num_waiting: requests that may wait for a place in the batch.
        num_threads: compute threads of a CPU worker.
        run_ahead: plans in flight; 1 waits for each result.
        memory_policy, preemption, watermark, growth_blocks, max_overtakes, prompt_share,
            prefix_cache, pinned_prefix_share, inter_token_latency_s: see `SchedulerConfig`.
        pinned_prefixes: prefixes to be pinned before the first request.
        compiled_kernels: whether kernels may be compiled, in C for CPUs and Triton for GPUs.
        graphs: whether small steps are captured and replayed, where the device can.
    """

    model_path: str
    model: ModelConfig
    dtype: DType
    device: Device
    load_format: LoadFormat = "safetensors"
    tensor_parallel_size: int = 1
    block_size: int = 16
    num_blocks: int = 0
    kv_cache_bytes: int = 0
    gpu_memory_fraction: float = 0.9
    swap_bytes: int = 0
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 256
    max_model_len: int = 8192
    max_num_waiting: int = 1024
    num_threads: int = 1
    run_ahead: int = 2
    compiled_kernels: bool = True
    graphs: bool = True
    memory_policy: MemoryPolicy = "paged"
    preemption: PreemptionPolicy = "auto"
    watermark: float = WATERMARK
    growth_blocks: float = 0.5
    max_overtakes: int = 0
    prompt_share: float = 0.5
    prefix_cache: bool = True
    pinned_prefix_share: float = 0.0
    pinned_prefixes: tuple[PrefixConfig, ...] = ()
    inter_token_latency_s: float = 0.0

    @property
    def scheduler(self) -> SchedulerConfig:
        """The part that the core sees."""
        return SchedulerConfig(
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            eos_token_ids=self.model.eos_token_ids,
            memory_policy=self.memory_policy,
            preemption=self.preemption,
            watermark=self.watermark,
            growth_blocks=self.growth_blocks,
            max_overtakes=self.max_overtakes,
            prompt_share=self.prompt_share,
            prefix_cache=self.prefix_cache,
            pinned_prefix_share=self.pinned_prefix_share,
            inter_token_latency_s=self.inter_token_latency_s,
        )
