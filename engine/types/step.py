"""What the scheduler asks of the workers in one step, and what they answer."""

from dataclasses import dataclass, field

from engine.types.columns import FloatColumn, IntColumn, float32, int8, int32, int64
from engine.types.request import SamplingParams

# int64 words of the key of a swap block: 32 bytes
KEY_WORDS = 4
# instead of a token, where the rules of a row leave none to choose
NONE_ALLOWED = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAdmission:
    """A sequence that enters the workers' row table.

    Attributes:
        choice: index of the sequence inside its request; added to the seed.
        length: positions that were computed before it was swapped out; a prefill sets its own.
        prompt_len: tokens of the prompt; penalties and `min_tokens` treat the output differently.
        known_tokens: int32 prompt and output tokens so far, where `sampling.needs_known_tokens`;
            otherwise empty.
    """

    row: int
    sampling: SamplingParams
    choice: int = 0
    length: int = 0
    prompt_len: int = 0
    known_tokens: IntColumn = field(default_factory=int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Everything that the workers must do in one step.

    A plan is self-contained, so plans can be logged and replayed. Workers do as if in field order:
    releases, admissions, forks, block table writes, last tokens, swap out, swap in, copies, then
    one forward pass over `decode_rows` (one token each, the row's last one) followed by the prefill
    chunks, and one sampled token per item of `sampled_rows`. A row's length, last token and block
    table live with the workers, so a plan carries only what changed.

    Attributes:
        releases: int32 rows that are free from now on.
        fork_parents, fork_children: int32 row pairs: the child's length and table become those of
            the parent. No child is a parent.
        append_rows, append_indices, append_blocks: int32 writes table[row][index] = block.
        token_rows, token_values: int32 writes last_token[row] = value, where it is not the token
            that the row sampled last.
        swap_out_sources, swap_out_destinations: int32 pairs, GPU block -> swap block. The same step
            writes the GPU block only if another column hands it out anew.
        swap_out_keys: int64, `KEY_WORDS` for each pair, which say what the swap block holds.
        swap_in_sources, swap_in_destinations: int32 pairs, swap block -> GPU block.
        swap_in_keys: int64, what each of the swap blocks is to hold.
        copy_sources, copy_destinations: int32 block pairs (copy-on-write).
        decode_rows: int32 rows that grow by one token.
        prefill_rows, prefill_starts, prefill_counts: int32, one item per chunk: tokens
            [start, start + count) of the row's sequence.
        prefill_samples: int8, 1 where the chunk ends the known tokens, so that a token is sampled.
        prefill_tokens: int32 token ids of all chunks, one after the other.
        sibling_rows, sibling_parents: int32 rows that sample, each for itself, from the logits of a
            parent whose prefill ends in this step; their length becomes the parent's.
    """

    step: int
    releases: IntColumn = field(default_factory=int32)
    admissions: list[RowAdmission] = field(default_factory=list)
    fork_parents: IntColumn = field(default_factory=int32)
    fork_children: IntColumn = field(default_factory=int32)
    append_rows: IntColumn = field(default_factory=int32)
    append_indices: IntColumn = field(default_factory=int32)
    append_blocks: IntColumn = field(default_factory=int32)
    token_rows: IntColumn = field(default_factory=int32)
    token_values: IntColumn = field(default_factory=int32)
    swap_out_sources: IntColumn = field(default_factory=int32)
    swap_out_destinations: IntColumn = field(default_factory=int32)
    swap_out_keys: IntColumn = field(default_factory=int64)
    swap_in_sources: IntColumn = field(default_factory=int32)
    swap_in_destinations: IntColumn = field(default_factory=int32)
    swap_in_keys: IntColumn = field(default_factory=int64)
    copy_sources: IntColumn = field(default_factory=int32)
    copy_destinations: IntColumn = field(default_factory=int32)
    decode_rows: IntColumn = field(default_factory=int32)
    prefill_rows: IntColumn = field(default_factory=int32)
    prefill_starts: IntColumn = field(default_factory=int32)
    prefill_counts: IntColumn = field(default_factory=int32)
    prefill_samples: IntColumn = field(default_factory=int8)
    prefill_tokens: IntColumn = field(default_factory=int32)
    sibling_rows: IntColumn = field(default_factory=int32)
    sibling_parents: IntColumn = field(default_factory=int32)

    @property
    def num_tokens(self) -> int:
        """Tokens of the forward pass."""
        return len(self.decode_rows) + len(self.prefill_tokens)

    @property
    def sampled_rows(self) -> IntColumn:
        """Rows that get a token, in the order of the result.

        Decodes, then prefills that end, then their siblings.
        """
        ended = [
            row
            for row, samples in zip(self.prefill_rows, self.prefill_samples, strict=True)
            if samples
        ]
        return self.decode_rows + int32(ended) + self.sibling_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What the workers computed for one plan, in the order of `StepPlan.sampled_rows`.

    After the sampled rows come the prompt's log-probabilities where a row asked for them: for every
    prefilled position of the prompt but its last, the token that follows it there.

    Attributes:
        rows, tokens: int32, one item per sampled row or prompt position; instead of a token -1
            where logits are no numbers, and `NONE_ALLOWED`.
        logprobs: float32 log-probability of each token in the raw distribution; NaN where the row
            asked for none.
        top_counts: int32 number of alternatives per item; empty when no row asked for any.
        top_tokens, top_logprobs: int32 and float32, the alternatives of all items, most likely
            first.
        elapsed_s: seconds the workers spent on the step.
        spoiled_slots: int32 swap blocks that were swapped in and do not hold what they should: the
            blocks in the pool, and every token that comes from them, are worthless.
        pooled_items: int32 items among the sampled rows whose rows pool, see `SamplingParams`.
        pooled: float32 vector of each, one behind the other.
    """

    step: int
    rows: IntColumn = field(default_factory=int32)
    tokens: IntColumn = field(default_factory=int32)
    logprobs: FloatColumn = field(default_factory=float32)
    top_counts: IntColumn = field(default_factory=int32)
    top_tokens: IntColumn = field(default_factory=int32)
    top_logprobs: FloatColumn = field(default_factory=float32)
    elapsed_s: float = 0.0
    spoiled_slots: IntColumn = field(default_factory=int32)
    pooled_items: IntColumn = field(default_factory=int32)
    pooled: FloatColumn = field(default_factory=float32)
