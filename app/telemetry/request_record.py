"""What is known of one HTTP request: its metrics, its line in the log and its trace follow."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.types import EventKind

# of a client that went away before its answer was sent whole; nginx writes it so
GONE = 499
# how a generation may end
OUTCOMES = (
    "stop", "length", "mixed", "abort", "disconnect", "slow", "refused", "overloaded", "error",
)  # fmt: skip


@dataclass(slots=True)
class ChoiceTimes:
    """Tokens of one candidate, and when the first and the last of them came."""

    num_tokens: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    reason: str | None = None


@dataclass(eq=False, slots=True, kw_only=True)
class RequestRecord:
    """Filled in on the way of a request; numbers, names and digests, never a text or a key.

    Attributes:
        request_id: as the client sees it.
        method: of HTTP.
        arrived_s, ended_s: seconds by a clock that never jumps.
        arrived_us: microseconds since the epoch.
        traceparent: header of W3C's trace context, as it came; empty for none.
        route: template of the path; "other" for none of ours.
        code: status of the answer; GONE where it was not sent whole.
        is_generation: whether it asks for tokens; what follows is of those only.
        is_stream, kind: how it is answered, and what it asks for: sample or beam.
        key: first digits of the digest of the caller's key; empty for none.
        read_s, submitted_s: when its body was read and its prompts were token ids; when an engine
            had accepted all prompts. 0 for not yet.
        num_prompt_tokens, num_cached_tokens, num_output_tokens: as its usage has them.
        choices: by index of the candidate.
        events: of each prompt, see `TokenStream`.
        has_failed: whether it broke off after the status was sent.
        is_unread: whether it broke off because its client did not read it.
        trace_id: of its trace, once there is one.
    """

    request_id: str = ""
    method: str = "GET"
    arrived_s: float = field(default_factory=time.perf_counter)
    arrived_us: int = field(default_factory=lambda: time.time_ns() // 1000)
    ended_s: float = 0.0
    traceparent: str = ""
    route: str = "other"
    code: int = GONE
    is_generation: bool = False
    is_stream: bool = False
    kind: str = "sample"
    key: str = ""
    num_candidates: int = 0
    read_s: float = 0.0
    submitted_s: float = 0.0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    choices: dict[int, ChoiceTimes] = field(default_factory=dict)
    events: Sequence[Sequence[tuple[EventKind, int]]] = ()
    has_failed: bool = False
    is_unread: bool = False
    trace_id: str = ""

    def note(self, index: int, num_tokens: int, reason: str | None) -> None:
        """Take in what came of a candidate."""
        choice = self.choices.get(index)
        if choice is None:
            choice = self.choices[index] = ChoiceTimes()
        if num_tokens:
            choice.last_s = time.perf_counter()
            if not choice.num_tokens:
                choice.first_s = choice.last_s
            choice.num_tokens += num_tokens
        if reason is not None:
            choice.reason = reason

    @property
    def first_token_s(self) -> float | None:
        """When the first token came; None if none did."""
        return min(
            (each.first_s for each in self.choices.values() if each.num_tokens), default=None
        )

    @property
    def seconds(self) -> float:
        """From the arrival to the end."""
        return self.ended_s - self.arrived_s

    @property
    def num_preemptions(self) -> int:
        """Times that its prompts left the batch for want of blocks."""
        preempted = (EventKind.PREEMPTED_SWAP, EventKind.PREEMPTED_RECOMPUTE)
        return sum(kind in preempted for events in self.events for kind, _ in events)

    @property
    def num_resumes(self) -> int:
        """Times that its prompts went on after they had lost their engine."""
        queued = (sum(kind is EventKind.QUEUED for kind, _ in events) for events in self.events)
        return sum(max(0, times - 1) for times in queued)

    @property
    def outcome(self) -> str:
        """How a generation ended, one of `OUTCOMES`."""
        if self.is_unread:
            return "slow"
        if self.code == GONE:
            return "disconnect"
        if self.code == 429:
            return "overloaded"
        if self.code >= 500 or self.has_failed:
            return "error"
        if self.code >= 400:
            return "refused"
        reasons = {
            "stop" if each.reason == "repetition" else each.reason for each in self.choices.values()
        }
        if len(reasons) > 1:
            return "mixed"
        reason = reasons.pop() if reasons else "stop"
        return reason if reason in ("stop", "length") else "abort"
