"""The values that cross module and process borders: requests, plans, results, outputs.

Everything here is frozen. Numbers that come one per row or per token travel as columns
(`array.array`: 'b' int8, 'i' int32, 'q' int64, 'f' float32), never as one Python object each.
"""

from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    IntColumn = array[int]
    FloatColumn = array[float]
else:
    # `array` takes no subscript at run time before Python 3.12, and the codec reads the annotations
    IntColumn = FloatColumn = array

# the choice that entries about the prompt itself have
PROMPT_CHOICE = -1
# what an abort of the whole request has in the place of a choice
ALL_CHOICES = -2
# the choice that news of open beams have
BEAM_CHOICE = -3
# what beams that have ended have in the place of an index
ENDED_BY_TOKEN, ENDED_BY_PATTERN = -1, -2
# where a stop pattern leads when it is met
PATTERN_MET = -1


def int32(values: "list[int] | tuple[int, ...] | bytes" = ()) -> IntColumn:
    """Make an int32 column."""
    return array("i", values)


def int64(values: "list[int] | tuple[int, ...] | bytes" = ()) -> IntColumn:
    """Make an int64 column."""
    return array("q", values)


def float32(values: "list[float] | tuple[float, ...] | bytes" = ()) -> FloatColumn:
    """Make a float32 column."""
    return array("f", values)


class FinishReason(IntEnum):
    """Why a sequence ended; NONE while it goes on, PATTERN by a `StopPattern`."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    ABORT = 3
    ERROR = 4
    PATTERN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPattern:
    """What ends a hypothesis of a beam search beside stop ids: an automaton over tokens.

    Every sequence is in state 0, and in the states that its last token has led to. A token without
    an edge from any of them leads to none.

    Attributes:
        sources, tokens, targets: int32 edges; `PATTERN_MET` as a target ends the sequence.
        silent: int32 tokens that change no state.
    """

    sources: IntColumn
    tokens: IntColumn
    targets: IntColumn
    silent: IntColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token of one request is chosen and when it stops.

    Attributes:
        max_tokens: most tokens to generate, at least 1.
        temperature: divides the logits; 0 takes the most likely token.
        top_k: keep this many most likely tokens; 0 keeps all.
        top_p: keep the smallest set of tokens whose probability reaches this, in (0, 1].
        min_p: drop tokens below this share of the most likely token's probability, in [0, 1].
        seed: 64-bit; with the position it fixes every draw, whatever else is in the batch.
        stop_token_ids: ids that end the sequence beside the model's own end ids.
        ignore_eos: go on after the model's end ids (`stop_token_ids` still end it).
        n: sequences to return; they share the prompt.
        beam_width: beams to keep open, at least n; 0 samples instead of searching.
        length_penalty, early_stopping: beam search only, as in transformers' `generate`.
        stop_pattern: beam search only: what else ends a hypothesis, with the token that meets it.
        tell_beams: beam search only: tell of the open beams after each step.
        min_tokens: tokens before which no stop id can be chosen.
        presence_penalty, frequency_penalty: subtracted from the logits of output tokens, once and
            per occurrence, in [-2, 2].
        repetition_penalty: divides positive and multiplies negative logits of prompt and output
            tokens, above 0; 1 changes nothing (arXiv:1909.05858).
        logit_bias: (token id, value added to its logit).
        allowed_token_ids: the only ids that can be chosen; empty allows all.
        bad_words: token sequences whose last token cannot follow the others.
        deterministic: the same bits alone, in a batch, after a swap and after recomputation.
        prompt_logprobs: None for none, else log-probabilities of the prompt's tokens and of this
            many most likely tokens at each place, told under `PROMPT_CHOICE`.
        num_logprobs: None for none, else log-probabilities of the chosen token and of this many
            most likely tokens, from the raw distribution (before temperature and filters).
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    beam_width: int = 0
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    stop_pattern: StopPattern | None = None
    tell_beams: bool = False
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    deterministic: bool = False
    prompt_logprobs: int | None = None
    num_logprobs: int | None = None

    @property
    def changes_logits(self) -> bool:
        """Whether anything but temperature and filters bears on the choice."""
        return (
            self.presence_penalty != 0
            or self.frequency_penalty != 0
            or self.repetition_penalty != 1
            or self.min_tokens > 0
            or bool(self.logit_bias or self.allowed_token_ids or self.bad_words)
        )

    @property
    def needs_known_tokens(self) -> bool:
        """Whether the workers must know the tokens of its rows."""
        return self.changes_logits or self.prompt_logprobs is not None

    @property
    def may_read_cache(self) -> bool:
        """Whether keys and values that another request has computed will do."""
        return self.prompt_logprobs is None and not self.deterministic


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A wish that the blocks of a prompt stay in the pool for later prompts that begin with it.

    Attributes:
        name: unique among the prefixes of a tenant.
        ttl_s: seconds from the end of its prefill; None for as long as the engine lives.
    """

    name: str
    ttl_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedPrefix:
    """A prefix that is pinned, or will be once it has been computed.

    Attributes:
        salt, name: see `Request` and `Pin`.
        num_tokens: tokens of its full blocks; those of a last block that is not full are computed
            again by each request.
        num_blocks: blocks that it holds, some of them perhaps together with other prefixes.
        is_warm: whether they are computed.
        expires_s: seconds on the clock that drives the engine; None for never.
    """

    salt: bytes
    name: str
    num_tokens: int
    num_blocks: int
    is_warm: bool
    expires_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to continue, made by the ingress.

    Attributes:
        request_id: 63-bit, unique in the engine.
        prompt: int32 token ids, at least one.
        salt: the tenant; requests of other tenants never share blocks with this one.
        arrival_s: seconds on the clock of whoever drives the engine.
        pin: keep the full blocks of the prompt. Such a request has one sequence of one token, which
            is not told: it ends without output once the prompt is computed.
    """

    request_id: int
    prompt: IntColumn
    sampling: SamplingParams
    arrival_s: float = 0.0
    salt: bytes = b""
    pin: Pin | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAdmission:
    """A sequence that enters the workers' row table.

    Attributes:
        choice: index of the sequence inside its request; added to the seed.
        length: positions that were computed before it was swapped out; a prefill sets its own.
        prompt_len: tokens of the prompt, which penalties and `min_tokens` tell from the output.
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

    A plan is self-contained, so plans can be logged and replayed. Workers apply it in field order:
    releases, admissions, forks, table entries, last tokens, swap out, swap in, copies, then one
    forward pass over `decode_rows` (one token each, the row's last one) followed by the prefill
    chunks, and one sampled token per entry of `sampled_rows`. A row's length, last token and block
    table live with the workers, so a plan carries only what changed.

    Attributes:
        releases: int32 rows that are free from now on.
        fork_parents, fork_children: int32 row pairs: the child's length and table become those of
            the parent. No child is a parent.
        append_rows, append_indices, append_blocks: int32 writes table[row][index] = block.
        token_rows, token_values: int32 writes last_token[row] = value, where it is not the token
            that the row sampled last.
        swap_out_blocks, swap_out_slots: int32 pairs, GPU block -> CPU slot.
        swap_in_slots, swap_in_blocks: int32 pairs, CPU slot -> GPU block.
        copy_sources, copy_destinations: int32 block pairs (copy-on-write).
        decode_rows: int32 rows that grow by one token.
        prefill_rows, prefill_starts, prefill_counts: int32, one entry per chunk: tokens
            [start, start + count) of the row's sequence.
        prefill_samples: int8, 1 where the chunk ends the known tokens, so that a token is sampled.
        prefill_tokens: int32 token ids of all chunks, one after the other.
        sibling_rows, sibling_parents: int32 rows that sample, each for itself, from the logits of a
            parent whose prefill ends in this step; their length becomes the parent's.
    """

    step: int
    releases: IntColumn = field(default_factory=int32)
    admissions: tuple[RowAdmission, ...] = ()
    fork_parents: IntColumn = field(default_factory=int32)
    fork_children: IntColumn = field(default_factory=int32)
    append_rows: IntColumn = field(default_factory=int32)
    append_indices: IntColumn = field(default_factory=int32)
    append_blocks: IntColumn = field(default_factory=int32)
    token_rows: IntColumn = field(default_factory=int32)
    token_values: IntColumn = field(default_factory=int32)
    swap_out_blocks: IntColumn = field(default_factory=int32)
    swap_out_slots: IntColumn = field(default_factory=int32)
    swap_in_slots: IntColumn = field(default_factory=int32)
    swap_in_blocks: IntColumn = field(default_factory=int32)
    copy_sources: IntColumn = field(default_factory=int32)
    copy_destinations: IntColumn = field(default_factory=int32)
    decode_rows: IntColumn = field(default_factory=int32)
    prefill_rows: IntColumn = field(default_factory=int32)
    prefill_starts: IntColumn = field(default_factory=int32)
    prefill_counts: IntColumn = field(default_factory=int32)
    prefill_samples: IntColumn = field(default_factory=lambda: array("b"))
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
        rows, tokens: int32, one entry per sampled row or prompt position.
        logprobs: float32 log-probability of each token in the raw distribution; NaN where the row
            asked for none.
        top_counts: int32 number of alternatives per entry; empty when no row asked for any.
        top_tokens, top_logprobs: int32 and float32, the alternatives of all entries, most likely
            first.
        elapsed_s: seconds the workers spent on the step.
    """

    step: int
    rows: IntColumn = field(default_factory=int32)
    tokens: IntColumn = field(default_factory=int32)
    logprobs: FloatColumn = field(default_factory=float32)
    top_counts: IntColumn = field(default_factory=int32)
    top_tokens: IntColumn = field(default_factory=int32)
    top_logprobs: FloatColumn = field(default_factory=float32)
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUsage:
    """KV slots by use; those from filled to free sum to the total.

    The waste has the paper's names (section 3.1), except that it counts free memory as external.

    Attributes:
        total: slots of the pool (blocks x block size).
        filled: slots in use that hold a token, shared ones once.
        reserved: slots kept in advance for tokens that will come.
        internal: slots kept in advance that are never used, by a wrong estimate; paged, all slots
            of blocks in use beyond the last token.
        external: slots that belong to nobody, by rounding to blocks and to powers of two.
        cached: slots of unused blocks whose contents are kept for later prompts until the space is
            needed.
        pinned: slots of unused blocks that belong to pinned prefixes.
        free: slots of the other blocks.
        shared_saving: slots that the sequences would need beyond `filled` without sharing.
        swapped: slots of blocks in the swap space; not part of the pool.
    """

    total: int
    filled: int
    internal: int
    free: int
    reserved: int = 0
    external: int = 0
    cached: int = 0
    pinned: int = 0
    shared_saving: int = 0
    swapped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """Counts right after a step.

    Attributes:
        num_running, num_waiting, num_swapped: requests by where they are.
        oldest_waiting_s, oldest_swapped_s: seconds since the arrival of the earliest request that
            waits or is swapped out; 0 when there is none.
        num_recomputed, num_swapped_out: preemptions of groups since the start, by kind.
        num_cached_tokens: prompt tokens found in the prefix cache since the start.
        num_tokens: tokens of the step's forward pass.
        elapsed_s: seconds the workers spent on it.
    """

    usage: MemoryUsage
    num_running: int = 0
    num_waiting: int = 0
    num_swapped: int = 0
    oldest_waiting_s: float = 0.0
    oldest_swapped_s: float = 0.0
    num_recomputed: int = 0
    num_swapped_out: int = 0
    num_cached_tokens: int = 0
    num_tokens: int = 0
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A `RequestError` on its way to the ingress; `code` says which one."""

    code: str
    message: str
    param: str | None = None
    limit: int = 0
    got: int = 0
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """The news of one step for the ingresses: one entry per new token or ended sequence.

    Attributes:
        request_ids: int64.
        choices: int32 index of the sequence inside its request.
        tokens: int32; -1 where a sequence ended without a token (abort, error).
        logprobs: float32, see `StepResult`.
        finish_reasons: int8 `FinishReason`.
        top_counts, top_tokens, top_logprobs: see `StepResult`.
        stats: counts after the step.
        cached_tokens: int32 tokens of the prompt that were found in the prefix cache, told once for
            each request, with one of its entries; empty when no entry tells any.
        preemptions: int32 times that the request was preempted since its last entry; empty when no
            entry tells any.
        pinned: all pinned prefixes, where that has changed since the last output.
        refusals: request ids that were refused after all, and why; their choices end by ERROR.
        beam_requests: int64, one entry per beam of the searches that tell of them, all beams of one
            step of a search together.
        beam_indices, beam_parents, beam_tokens: int32; the beam with an index, or `ENDED_BY_TOKEN`
            or `ENDED_BY_PATTERN`, adds a token to what the parent was before the step. Beams that
            are not named are gone; the first parent is 0.
        beam_logprobs: float32 of the tokens.
    """

    step: int
    request_ids: IntColumn
    choices: IntColumn
    tokens: IntColumn
    logprobs: FloatColumn
    finish_reasons: IntColumn
    top_counts: IntColumn
    top_tokens: IntColumn
    top_logprobs: FloatColumn
    stats: StepStats
    cached_tokens: IntColumn = field(default_factory=int32)
    preemptions: IntColumn = field(default_factory=int32)
    pinned: tuple[PinnedPrefix, ...] | None = None
    refusals: tuple[tuple[int, Refusal], ...] = ()
    beam_requests: IntColumn = field(default_factory=int64)
    beam_indices: IntColumn = field(default_factory=int32)
    beam_parents: IntColumn = field(default_factory=int32)
    beam_tokens: IntColumn = field(default_factory=int32)
    beam_logprobs: FloatColumn = field(default_factory=float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What the workers can hold.

    Attributes:
        num_blocks: blocks of the KV pool.
        block_size: tokens per block.
        num_rows: sequences that can be in the row table at once.
        num_swap_slots: blocks that fit the swap space.
        block_copy_s: seconds to copy a block to or from the swap space; 0 when not measured.
        recompute_changes_bits: whether prefilling again what was decoded gives other bits even for
            deterministic requests.
    """

    num_blocks: int
    block_size: int
    num_rows: int
    num_swap_slots: int = 0
    block_copy_s: float = 0.0
    recompute_changes_bits: bool = False

    @property
    def num_slots(self) -> int:
        """Tokens that fit the KV pool."""
        return self.num_blocks * self.block_size
