"""What an engine replica measures, from the outputs of its scheduler."""

from collections.abc import Iterator

from engine.runtime.metrics.engine_table import (
    BLOCK_COPIES,
    CHOICES_ENDED,
    CLIENT_LOST,
    ENGINE_METRICS,
    EVICTED_BLOCKS,
    FORKS,
    GANG_LOST,
    GENERATED_TOKENS,
    HOST_WORK_S,
    KV_CAPACITY,
    KV_SAVING,
    KV_SLOTS,
    KV_SWAPPED,
    KV_USAGE,
    OLDEST_S,
    PREEMPTIONS,
    PROMPT_TOKENS,
    RECOMPUTED_TOKENS,
    REFUSALS,
    REQUESTS,
    SPOILED_BLOCKS,
    STEP_S,
    STEP_TOKENS,
    STEPS,
    SWAP_BLOCKS,
    WASTED_ROWS,
)
from engine.runtime.metrics.metric_store import MetricStore
from engine.runtime.metrics.request_times import RequestTimes
from engine.runtime.metrics.token_gaps import TokenGaps, is_going_on
from engine.types import (
    PROMPT_CHOICE,
    EventKind,
    FinishReason,
    Request,
    RequestEvents,
    StepOutput,
    StepStats,
)

KV_USES = ("filled", "reserved", "internal", "external", "cached", "pinned", "free")
_STATES = ("running", "waiting", "swapped")


class EngineMetrics:
    """Counts what comes of a replica's requests; what the replica asks for itself counts not.

    Attributes:
        store: the values.
    """

    def __init__(self, stats: StepStats) -> None:
        """Args: stats: before the first step."""
        self.store = MetricStore(ENGINE_METRICS)
        self._times = RequestTimes(self.store)
        self._gaps = TokenGaps(self.store)
        self._stats = stats
        self._own: set[int] = set()
        self._num_own_tokens = 0
        self._had_gang = False
        self._last_step_s = 0.0
        for metric, values in _KNOWN_LABELS.items():
            for value in values:
                self.store.add(metric, 0, value)

    def own_request(self, request: Request) -> None:
        """Note a request of the replica itself: a first token, a prefix."""
        self._own.add(request.request_id)
        if request.pin is None:
            self._num_own_tokens += len(request.prompt)

    def observe(self, output: StepOutput, now_s: float) -> None:
        """Take in an output.

        Args:
            now_s: seconds, on a clock that never jumps.
        """
        if output.events is not None:
            self._times.observe(output.events, self._own)
        before, self._stats = self._stats, output.stats
        self._count_work(before, output.stats)
        if output.stats.num_tokens:
            self._count_step(output.stats)
            self._last_step_s = now_s
        if output.tokens:
            self._count_tokens(output)
            self._gaps.observe(output, now_s)
        if self._own and output.events is not None:
            self._forget_own(output.events)

    def open_events(self) -> Iterator[tuple[int, EventKind, int]]:
        """See `RequestTimes.open_events`."""
        return self._times.open_events()

    def take_over(self, stats: StepStats) -> None:
        """Begin anew with the counts of a scheduler; the sums stay.

        Args:
            stats: before its first step.
        """
        self._stats = stats
        self.store.add(GANG_LOST, int(self._had_gang))
        self._had_gang = True

    def lost_gang(self, stats: StepStats) -> None:
        """Forget the requests of a scheduler.

        Args:
            stats: of none.
        """
        self._stats = stats
        self._times.clear()
        self._gaps.clear()
        self._own.clear()
        self._num_own_tokens = 0

    def lost_client(self, reason: str) -> None:
        """Count an ingress that was given up with requests open."""
        self.store.add(CLIENT_LOST, 1, reason)

    def refused(self, reason: str) -> None:
        """Count a request that was refused because the replica has too much to do."""
        self.store.add(REFUSALS, 1, reason)

    def seconds_since_step(self, now_s: float) -> float:
        """Seconds since the last step."""
        return max(0.0, now_s - self._last_step_s)

    def set_gauges(self) -> None:
        """Write down what is the case after the last step."""
        stats, usage, store = self._stats, self._stats.usage, self.store
        counts = (stats.num_running, stats.num_waiting, stats.num_swapped)
        for state, count in zip(_STATES, counts, strict=True):
            store.set(REQUESTS, count, state)
        store.set(OLDEST_S, stats.oldest_waiting_s, "waiting")
        store.set(OLDEST_S, stats.oldest_swapped_s, "swapped")
        for use in KV_USES:
            store.set(KV_SLOTS, getattr(usage, use), use)
        store.set(KV_CAPACITY, usage.total)
        store.set(KV_SAVING, usage.shared_saving)
        store.set(KV_SWAPPED, usage.swapped)
        num_used = usage.total - usage.free - usage.cached
        store.set(KV_USAGE, num_used / usage.total)

    def _count_work(self, before: StepStats, stats: StepStats) -> None:
        """Add what has come to the sums of the scheduler since the last output."""
        add, work, was = self.store.add, stats.work, before.work
        if work != was:
            num_cached = work.num_prompt_cached - was.num_prompt_cached
            num_prompt = work.num_prompt_tokens - was.num_prompt_tokens
            # nobody else is served before a first token
            num_own = min(self._num_own_tokens, num_prompt - num_cached)
            self._num_own_tokens -= num_own
            add(PROMPT_TOKENS, num_prompt - num_cached - num_own, "computed")
            add(PROMPT_TOKENS, num_cached, "cached")
            add(RECOMPUTED_TOKENS, work.num_recomputed_tokens - was.num_recomputed_tokens)
            add(FORKS, work.num_forks - was.num_forks)
            add(BLOCK_COPIES, work.num_copied_blocks - was.num_copied_blocks)
            add(WASTED_ROWS, work.num_wasted_rows - was.num_wasted_rows)
            add(SWAP_BLOCKS, work.num_blocks_swapped_out - was.num_blocks_swapped_out, "out")
            add(SWAP_BLOCKS, work.num_blocks_swapped_in - was.num_blocks_swapped_in, "in")
        add(EVICTED_BLOCKS, stats.usage.num_evicted - before.usage.num_evicted)
        add(SPOILED_BLOCKS, stats.num_spoiled - before.num_spoiled)

    def _count_step(self, stats: StepStats) -> None:
        store, num_decodes = self.store, stats.num_decode_rows
        kind = (
            "decode" if num_decodes == stats.num_tokens else "mixed" if num_decodes else "prefill"
        )
        store.add(STEPS, 1, kind)
        store.observe(STEP_S, stats.elapsed_s, 1, kind)
        store.observe(STEP_TOKENS, stats.num_tokens)
        store.observe(HOST_WORK_S, stats.schedule_s, 1, "schedule")
        store.observe(HOST_WORK_S, stats.update_s, 1, "update")

    def _count_tokens(self, output: StepOutput) -> None:
        tokens, choices = output.tokens, output.choices
        count = len(tokens) - tokens.count(-1) - choices.count(PROMPT_CHOICE)
        if self._own:
            rows = zip(output.request_ids, tokens, strict=True)
            count -= sum(1 for request_id, token in rows if token >= 0 and request_id in self._own)
        self.store.add(GENERATED_TOKENS, count)
        if is_going_on(output):
            return
        for request_id, reason in zip(output.request_ids, output.finish_reasons, strict=True):
            if reason and request_id not in self._own:
                self.store.add(CHOICES_ENDED, 1, FinishReason(reason).name.lower())

    def _forget_own(self, events: RequestEvents) -> None:
        pairs = zip(events.requests, events.kinds, strict=True)
        self._own.difference_update(each for each, kind in pairs if kind == EventKind.ENDED)


_KNOWN_LABELS = {
    PROMPT_TOKENS: ("computed", "cached"),
    PREEMPTIONS: ("swap", "recompute"),
    SWAP_BLOCKS: ("out", "in"),
    STEPS: ("prefill", "decode", "mixed"),
    CLIENT_LOST: ("silent", "slow"),
    CHOICES_ENDED: ("stop", "length", "abort", "error", "expired"),
    REFUSALS: ("requests", "tokens", "share", "wait"),
}
