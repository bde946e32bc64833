"""The settings of the scheduler and of the KV cache's allocation."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from engine.config.documented import documented
from engine.config.kv_groups import longest_sequence
from engine.errors import ConfigError
from engine.integers import div_ceil

MemoryPolicy = Literal[
    "paged", "reserved_oracle", "reserved_pow2", "reserved_max", "faster_transformer"
]
QueuePolicy = Literal["fcfs", "fair", "priority"]
PreemptionPolicy = Literal["auto", "swap", "recompute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Settings that `engine.core` reads; how many sequences a batch holds comes in `Capacity`."""

    max_num_batched_tokens: int = field(
        metadata=documented(
            "tokens that one step computes, prefill and decode together; lower it for shorter gaps "
            "between the tokens of a stream",
            ge=1,
            le=1 << 20,
        )
    )
    max_model_len: int = field(
        metadata=documented("longest prompt plus output in tokens", ge=2, lt=1 << 31)
    )
    clips_context: bool = field(
        default=False,
        metadata=documented(
            "whether a KV cache that does not hold `max_model_len` lowers it, rather than ending "
            "the start"
        ),
    )
    eos_token_ids: tuple[int, ...] = field(
        default=(), metadata=documented("ids that end a sequence unless its request ignores them")
    )
    memory_policy: MemoryPolicy = field(
        default="paged",
        metadata=documented(
            "how the KV cache is allocated: `paged`, block by block, or as a system that the paper "
            "compares with: `reserved_oracle`, `reserved_pow2` and `reserved_max` reserve "
            "contiguous blocks for the longest output (as asked for, rounded up to a power of two, "
            "or up to `max_model_len`), `faster_transformer` is `reserved_max` with batches that "
            "start and end together"
        ),
    )
    preemption: PreemptionPolicy = field(
        default="auto",
        metadata=documented(
            "how the KV cache of a preempted request comes back: `swap` copies its blocks to CPU "
            "memory and back (needs `swap_gib`), `recompute` frees them and prefills again, `auto` "
            "takes what costs less time for each request"
        ),
    )
    queue_policy: QueuePolicy = field(
        default="fair",
        metadata=documented(
            "which waiting request enters the batch next: `fair` shares the engine between API "
            "keys by their weights, counted in tokens, and serves each key first come, first "
            "served; `fcfs` serves all so; `priority` takes the lowest `priority` of the requests, "
            "however long others wait"
        ),
    )
    watermark: float = field(
        default=0.01,
        metadata=documented(
            "share of the blocks that a new request must leave free for running ones; `paged` only",
            ge=0,
            le=0.5,
        ),
    )
    growth_blocks: float = field(
        default=0.5,
        metadata=documented(
            "blocks per running sequence that a new request must leave free, where that is more "
            "than `watermark`; keeps the same request from being preempted again and again; "
            "`paged` only",
            ge=0,
            le=64,
        ),
    )
    max_overtakes: int = field(
        default=0,
        metadata=documented(
            "later requests that may start while an earlier one is swapped out and does not fit "
            "yet; 0 keeps first come, first served",
            ge=0,
            le=4096,
        ),
    )
    prompt_share: float = field(
        default=0.5,
        metadata=documented(
            "share of `max_num_batched_tokens` that the prefill of one prompt may take in a step "
            "while another prompt waits for its own",
            gt=0,
            le=1,
        ),
    )
    fills_steps: bool = field(
        default=True,
        metadata=documented(
            "whether a step in which a prompt ends may compute prompts beyond `prompt_share` of "
            "its budget; if not, the first token of that prompt comes sooner, and those of others "
            "no later where a larger step takes as long for each of its tokens, as on a CPU"
        ),
    )
    lone_prompt_tokens: int = field(
        default=0,
        metadata=documented(
            "tokens of a prompt that one step computes while no other request is open, if more "
            "than `max_num_batched_tokens`; a request that comes meanwhile waits for that step",
            ge=0,
            le=1 << 20,
        ),
    )
    prefix_cache: bool = field(
        default=True,
        metadata=documented(
            "keep the blocks of earlier prompts and answers, and use them again for prompts that "
            "begin in the same way"
        ),
    )
    pinned_prefix_share: float = field(
        default=0.0,
        metadata=documented(
            "share of the blocks that pinned prefixes may hold; the longest request must fit into "
            "the rest",
            ge=0,
            le=0.9,
        ),
    )
    max_pinned_prefixes: int = field(
        default=64,
        metadata=documented(
            "prefixes that one tenant (API key and `cache_salt`) may pin at a time", ge=1, le=65536
        ),
    )
    long_step_share: float = field(
        default=0.008,
        metadata=documented(
            "share of the steps with decodes that long prompts may make more than 2.5 times as "
            "long as one of only decodes; further prompts are cut, unless so many wait that this "
            "would hold them up; 1 cuts none"
            ", `inter_token_latency_ms` all of them",
            ge=0,
            le=1,
        ),
    )
    inter_token_latency_s: float = field(
        default=0.0,
        metadata=documented(
            "longest time that a step may take while requests wait for their next token; prefills "
            "in the same step are shortened to keep it"
        ),
    )

    @property
    def max_chunk(self) -> int:
        """Tokens of `prompt_share`."""
        return max(1, int(self.max_num_batched_tokens * self.prompt_share))

    @property
    def max_step_tokens(self) -> int:
        """Tokens that the largest step computes."""
        return max(self.max_num_batched_tokens, min(self.lone_prompt_tokens, self.max_model_len))

    def num_pinnable(self, num_blocks: int) -> int:
        """Blocks of a pool of `num_blocks` that pinned prefixes may hold."""
        return int(num_blocks * self.pinned_prefix_share)

    def longest_context(
        self, num_blocks: int, block_size: int, windows: Sequence[int] = (0,)
    ) -> int:
        """Tokens that a pool holds of one sequence, beside what pinned prefixes may take.

        Args:
            num_blocks: of the pool, each for all groups of layers.
            windows: of the groups.
        """
        if self.pinned_prefix_share:
            num_blocks -= self.num_pinnable(num_blocks) + int(num_blocks * self.watermark)
        return longest_sequence(num_blocks, block_size, windows, self.max_step_tokens)

    def fitted(self, num_blocks: int, block_size: int, windows: Sequence[int] = (0,)) -> Self:
        """Return the settings for a pool of a size that was not known before; see `clips_context`.

        No context is clipped below two tokens, the shortest that there is.

        Args:
            num_blocks, block_size, windows: see `longest_context`.
        """
        longest = max(2, self.longest_context(num_blocks, block_size, windows))
        if not self.clips_context or longest >= self.max_model_len:
            return self
        return replace(self, max_model_len=longest)

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
        num_needed = div_ceil(self.max_model_len, block_size)
        if num_left < num_needed:
            raise ConfigError(
                f"pinned_prefix_share {share} leaves {num_left} of {num_blocks} blocks "
                f"({num_pinned} may be pinned, {num_kept_free} are kept free), but a sequence of "
                f"max_model_len {self.max_model_len} needs {num_needed}; lower pinned_prefix_share "
                "or max_model_len, or enlarge the pool"
            )
