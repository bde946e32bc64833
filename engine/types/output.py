"""The output of a step for the clients."""

from dataclasses import dataclass, field
from enum import IntEnum

from engine.types.columns import FloatColumn, IntColumn, float32, int8, int32, int64
from engine.types.memory import MemoryUsage, PinnedPrefix

# the choice that items about the prompt itself have
PROMPT_CHOICE = -1
# the choice that reports of open beams have
BEAM_CHOICE = -3
# before anything is known of the KV pool
NO_POOL = MemoryUsage(total=0, filled=0, internal=0, free=0)
# what beams that have ended have in the place of an index
ENDED_BY_TOKEN, ENDED_BY_PATTERN = -1, -2


class FinishReason(IntEnum):
    """Why a sequence ended; NONE while it goes on.

    PATTERN: by a `StopPattern`. ERROR: its logits were no numbers. RULED_OUT: the rules of the
    request left no token to choose. LOST: the engine's processes died while the request waited; it
    can be sent again. CRASHED: they died while the request was in the batch. CRASHED_SOLO: they
    died while it was on probation, with nothing beside it. EXPIRED: it has waited for longer than
    its terms allow, and nothing of it was computed.
    """

    NONE = 0
    STOP = 1
    LENGTH = 2
    ABORT = 3
    ERROR = 4
    PATTERN = 5
    RULED_OUT = 6
    LOST = 7
    CRASHED = 8
    CRASHED_SOLO = 9
    EXPIRED = 10


# ends of the engine, not of the request
LOST_REASONS = (FinishReason.LOST, FinishReason.CRASHED, FinishReason.CRASHED_SOLO)


class EventKind(IntEnum):
    """What has happened to a request.

    QUEUED: it waits in the scheduler. ADMITTED: it has blocks and is being prefilled. PREFILLED:
    the first token after that prefill is known; it may have been preempted by then.
    PREEMPTED_SWAP, PREEMPTED_RECOMPUTE: it has left the batch (paper, section 4.5); a group whose
    swap blocks are spoiled counts as the latter. RESUMED: it is back. ENDED: all its choices have
    ended.
    """

    QUEUED = 1
    ADMITTED = 2
    PREFILLED = 3
    PREEMPTED_SWAP = 4
    PREEMPTED_RECOMPUTE = 5
    RESUMED = 6
    ENDED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEvents:
    """What has happened to requests, in order of time; the source of metrics and traces.

    Attributes:
        requests: int64 request ids.
        kinds: int8 `EventKind`.
        times_us: int64 microseconds since the epoch, by a clock of the engine's that never jumps.
    """

    requests: IntColumn
    kinds: IntColumn
    times_us: IntColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A `RequestError` on its way to the client; `code` says which one."""

    code: str
    message: str
    param: str | None = None
    limit: int = 0
    got: int = 0
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkCounts:
    """What a scheduler has had computed since its start, beside what `StepStats` counts.

    Attributes:
        num_prompt_tokens: prompt tokens of requests that have entered the batch, once a request;
            neither pinned prefixes nor what goes on from another engine.
        num_prompt_cached: those of them that the prefix cache had.
        num_recomputed_tokens: tokens prefilled again, of requests that were preempted or go on
            from another engine.
        num_forks, num_copied_blocks: forks of sequences and beams; blocks copied on write.
        num_blocks_swapped_out, num_blocks_swapped_in: blocks copied to the swap space and back,
            saved ones too.
        num_wasted_rows: tokens that were sampled behind the end of a sequence, by a plan made
            ahead of it.
    """

    num_prompt_tokens: int = 0
    num_prompt_cached: int = 0
    num_recomputed_tokens: int = 0
    num_forks: int = 0
    num_copied_blocks: int = 0
    num_blocks_swapped_out: int = 0
    num_blocks_swapped_in: int = 0
    num_wasted_rows: int = 0


NO_WORK = WorkCounts()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStats:
    """Counts right after a step.

    Attributes:
        num_running, num_waiting, num_swapped: requests by where they are.
        oldest_waiting_s, oldest_swapped_s: seconds since the arrival of the earliest request that
            waits or is swapped out; 0 when there is none.
        num_recomputed, num_swapped_out: preemptions of groups since the start, by kind.
        num_cached_tokens: tokens found in the prefix cache since the start: of prompts and, by
            requests that were preempted, of what they had generated.
        num_restored_tokens: those of them that came from the swap space.
        num_spoiled: swap blocks that did not hold what they should, since the start.
        num_tokens: tokens of the step's forward pass.
        num_decode_rows: those of them that are the last ones of running sequences.
        elapsed_s: seconds the workers spent on it.
        work: sums since the start of the scheduler.
        schedule_s, update_s: seconds of the scheduler's own work since the last output: on plans,
            and on the result. They differ from run to run, so they do not count for equality.
    """

    usage: MemoryUsage = NO_POOL
    num_running: int = 0
    num_waiting: int = 0
    num_swapped: int = 0
    oldest_waiting_s: float = 0.0
    oldest_swapped_s: float = 0.0
    num_recomputed: int = 0
    num_swapped_out: int = 0
    num_cached_tokens: int = 0
    num_restored_tokens: int = 0
    num_spoiled: int = 0
    num_tokens: int = 0
    num_decode_rows: int = 0
    elapsed_s: float = 0.0
    work: WorkCounts = NO_WORK
    schedule_s: float = field(default=0.0, compare=False)
    update_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """The output of one step for the clients: one item per new token or ended sequence.

    Attributes:
        request_ids: int64.
        choices: int32 index of the sequence inside its request.
        tokens: int32; -1 where a sequence ended without a token (abort, error).
        logprobs: float32, see `StepResult`.
        finish_reasons: int8 `FinishReason`.
        top_counts, top_tokens, top_logprobs: see `StepResult`.
        stats: counts after the step.
        cached_tokens: int32 tokens of the prompt that were found in the prefix cache, reported once
            for each request, with one of its items, else 0; empty when no item has any.
        preemptions: int32 times that the request was preempted since its last item; empty when all
            are 0.
        peak_blocks: int32 most blocks that the request has held at once, where it wants to know and
            they have become more since its last item, else 0; empty when all are 0.
        pinned: all pinned prefixes, where that has changed since the last output.
        prefix_marks: summary of the prefix cache, where that has changed since it was last
            reported; see `engine.core.memory.prefix_marks`.
        refusals: request ids that were refused after all, and why; their choices end by ERROR or
            EXPIRED.
        beam_requests: int64, one item per beam of the searches that report them, all beams of one
            step of a search together.
        beam_indices, beam_parents, beam_tokens: int32; the beam with an index, or `ENDED_BY_TOKEN`
            or `ENDED_BY_PATTERN`, adds a token to what the parent was before the step. Beams that
            are not named are gone; the first parent is 0.
        beam_logprobs: float32 of the tokens.
        beam_top_counts, beam_top_tokens, beam_top_logprobs: int32, int32 and float32, the most
            likely tokens in the place of each, where the request asks for them; see `StepResult`.
        events: what has happened to requests since the last output; None if nothing has.
        pooled_requests: int64 requests that get a vector, see `SamplingParams.pooling`; each has
            an item, too, by which it ends.
        pooled: float32 vector of each, one behind the other.
        snapshot: an encoded `EngineSnapshot`, in the answer to who asks for one; such an output has
            no rows and is of no step.
        failure: why the workers cannot go on; set in the last output of a scheduler only.
    """

    step: int
    request_ids: IntColumn = field(default_factory=int64)
    choices: IntColumn = field(default_factory=int32)
    tokens: IntColumn = field(default_factory=int32)
    logprobs: FloatColumn = field(default_factory=float32)
    finish_reasons: IntColumn = field(default_factory=int8)
    top_counts: IntColumn = field(default_factory=int32)
    top_tokens: IntColumn = field(default_factory=int32)
    top_logprobs: FloatColumn = field(default_factory=float32)
    stats: StepStats = StepStats()
    cached_tokens: IntColumn = field(default_factory=int32)
    preemptions: IntColumn = field(default_factory=int32)
    peak_blocks: IntColumn = field(default_factory=int32)
    pinned: tuple[PinnedPrefix, ...] | None = None
    prefix_marks: bytes | None = None
    refusals: tuple[tuple[int, Refusal], ...] = ()
    beam_requests: IntColumn = field(default_factory=int64)
    beam_indices: IntColumn = field(default_factory=int32)
    beam_parents: IntColumn = field(default_factory=int32)
    beam_tokens: IntColumn = field(default_factory=int32)
    beam_logprobs: FloatColumn = field(default_factory=float32)
    beam_top_counts: IntColumn = field(default_factory=int32)
    beam_top_tokens: IntColumn = field(default_factory=int32)
    beam_top_logprobs: FloatColumn = field(default_factory=float32)
    events: RequestEvents | None = None
    pooled_requests: IntColumn = field(default_factory=int64)
    pooled: FloatColumn = field(default_factory=float32)
    snapshot: bytes | None = None
    failure: str = ""
