"""What crosses the device border: batches on their way in, chosen tokens on their way out."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from torch import Tensor

# temperatures below are greedy, in float32 exactly: logits beyond 1e-6 that differ do so by 1e-13
# at least, noise spans 25, and a quotient stays finite for logits up to 1e23
SMALLEST_TEMPERATURE = 1e-15


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLayout:
    """Where each token of a flattened batch lives; built once per step, read by every layer.

    The batch holds the new tokens of R sequences: first `num_decodes` sequences with one token
    each, then the prefill chunks. Sequence r has tokens [query_starts[r], query_starts[r + 1]) of
    the batch, at positions [context_lens[r] - its count, context_lens[r]). Prefill chunks may be
    empty, and what is attended for tokens behind the last chunk means nothing.

    Attributes:
        num_decodes: leading sequences with exactly one new token.
        positions: [T] int64 position of each token in its sequence.
        slot_mapping: [T] int64 flat slot (block * block_size + offset) that receives its key and
            value; -1 for none.
        block_tables: [R, max_blocks] int32, rows padded with any valid block id.
        context_lens: [R] int32 tokens of the sequence including the new ones.
        query_starts: [R + 1] int32.
        max_context_len: largest entry of `context_lens`.
        max_query_len: most new tokens of one sequence.
        logit_indices: [S] int64 tokens of the batch whose logits are needed; None for all.
        is_deterministic: whether a token's result may depend only on its own sequence, bit for
            bit; such sequences have one token each, and `num_decodes` is 0.
        others: the same tokens in the other groups of layers, which have block tables of their own:
            `slot_mapping` and `block_tables` differ. Empty where all layers are in one group.
        attention_work: how the backend splits attention, private to it; None before
            `KernelBackend.prepare`, and for backends that need none.
        before_layer: to be called with each layer's place in a block before its work is enqueued,
            where its keys and values may still be on their way into the pool.
    """

    num_decodes: int
    positions: Tensor
    slot_mapping: Tensor
    block_tables: Tensor
    context_lens: Tensor
    query_starts: Tensor
    max_context_len: int
    max_query_len: int
    logit_indices: Tensor | None
    is_deterministic: bool = False
    others: tuple["BatchLayout", ...] = ()
    attention_work: object = None
    before_layer: Callable[[int], None] | None = None

    @property
    def by_group(self) -> tuple["BatchLayout", ...]:
        """The layout of each group of layers."""
        return (self, *self.others)

    def with_groups(self, others: Iterable[tuple[Tensor, Tensor]]) -> "BatchLayout":
        """This layout, with slot mapping and block tables of each other group of layers."""
        return replace(
            self,
            others=tuple(
                replace(self, slot_mapping=slot_mapping, block_tables=block_tables)
                for slot_mapping, block_tables in others
            ),
        )

    def logit_rows(self, x: Tensor) -> Tensor:
        """The rows [S, n] of x [T, n] whose logits are needed, x itself where they are all."""
        return x if self.logit_indices is None else x.index_select(0, self.logit_indices)


@dataclass(frozen=True, slots=True)
class BatchColumns:
    """What the host knows of a batch whose rows lie in tables on the device; all int64.

    The batch has R rows and T tokens: first one token of each row that decodes, then P tokens of
    prompts. Without prompts R = T. S rows get a token.

    Attributes:
        rows, context_lens: [R] of each sequence: its row of the tables, and its tokens including
            the new ones.
        starts: [R + 1] first token of each sequence, and the end of the last one.
        block_indices, block_offsets: [T] of each token: the place in the flat block tables that
            names its block, and its slot in that block; with offset -1 in block 0 it has none.
        prompt_tokens: [P] ids of the tokens behind the decodes.
        positions: [T] of each token in its sequence.
        sampled_rows: [S] rows that get a token, in the order of their logits.
        sampled_positions: [S] position that each of these tokens will have in its sequence.
        logit_indices: token of the batch behind which each logit is needed: S for the sampled
            rows, then those of prompt tokens.
    """

    rows: Tensor
    context_lens: Tensor
    starts: Tensor
    block_indices: Tensor
    block_offsets: Tensor
    prompt_tokens: Tensor
    positions: Tensor
    sampled_rows: Tensor
    sampled_positions: Tensor
    logit_indices: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredBatch:
    """What `BatchColumns` become with the tables of all rows, beside tokens.

    Attributes:
        slot_mapping, block_tables, context_lens, query_starts: see `BatchLayout`.
    """

    slot_mapping: Tensor
    block_tables: Tensor
    context_lens: Tensor
    query_starts: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingColumns:
    """Sampling parameters of S rows; a draw depends only on its own row.

    What the flags make pointless may hold anything: temperature and seeds where all rows are
    greedy, top_p, min_p and top_k where no row has a filter.

    Attributes:
        temperature, top_p, min_p: [S] float32; a temperature below
            `SMALLEST_TEMPERATURE` takes the most likely token.
        top_k: [S] int32; 0 keeps all.
        seeds: [S] int64.
        positions: [S] int64 position that the sampled token will have, the counter of the draw.
        num_logprobs: most likely tokens to report, the maximum over the rows; -1 when no row wants
            any.
        all_greedy: whether every temperature is below that.
        any_filter: whether a row may use top-k, top-p or min-p.
    """

    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    top_k: Tensor
    seeds: Tensor
    positions: Tensor
    num_logprobs: int
    all_greedy: bool
    any_filter: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Chosen tokens of S rows.

    Attributes:
        tokens: [S] int64; -1 where the logits hold NaN, or their maximum is not finite.
        logprobs: [S] float32 of the raw distribution, or None when no row wants any.
        top_tokens, top_logprobs: [S, num_logprobs] int64 and float32, most likely first, or None.
    """

    tokens: Tensor
    logprobs: Tensor | None = None
    top_tokens: Tensor | None = None
    top_logprobs: Tensor | None = None

    def part(self, start: int, end: int) -> "Sampled":
        """Rows [start, end)."""

        def cut(column: Tensor | None) -> Tensor | None:
            return None if column is None else column[start:end]

        return Sampled(
            tokens=self.tokens[start:end],
            logprobs=cut(self.logprobs),
            top_tokens=cut(self.top_tokens),
            top_logprobs=cut(self.top_logprobs),
        )
