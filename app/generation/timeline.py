"""What happened to a request, and when: the `metrics` that a client may ask for with its answer."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from engine.types import EventKind

Events = Sequence[tuple[EventKind, int]]

_QUEUE, _PREFILL, _DECODE, _PREEMPTED = "queue", "prefill", "decode", "preempted"
_PHASES = (_QUEUE, _PREFILL, _DECODE, _PREEMPTED)


def timeline(prompts: Sequence[Events], start_us: int, end_us: int) -> dict[str, Any]:
    """Return the phases of a request, its preemptions, and each event; times in seconds.

    Prompts of one request are served beside each other: a phase is that of the prompt which was in
    it for longest. Counts are of all prompts.

    Args:
        prompts: what engines have reported of each, see `TokenStream`.
        start_us, end_us: microseconds since the epoch, between which all that is reported is taken
            to have happened: engines have other clocks.
    """
    clamped = [
        [(kind, min(max(time_us, start_us), end_us)) for kind, time_us in events]
        for events in prompts
    ]
    phases = [_phases(events, end_us) for events in clamped]
    longest = {phase: max((each[phase] for each in phases), default=0) for phase in _PHASES}
    happened = sorted(
        (time_us - start_us, number, kind)
        for number, events in enumerate(clamped)
        for kind, time_us in events
    )
    first = next((time_us for time_us, _, kind in happened if kind is EventKind.PREFILLED), None)
    counts = Counter(kind for _, _, kind in happened)
    began = sum(1 for events in prompts if events)
    return {
        **{f"{phase}_s": _seconds(longest[phase]) for phase in _PHASES},
        "time_to_first_token_s": None if first is None else _seconds(first),
        "total_s": _seconds(end_us - start_us),
        "preemptions": {
            "swap": counts[EventKind.PREEMPTED_SWAP],
            "recompute": counts[EventKind.PREEMPTED_RECOMPUTE],
        },
        "engine_losses": counts[EventKind.QUEUED] - began,
        "events": [
            {"prompt": number, "event": kind.name.lower(), "at_s": _seconds(time_us)}
            for time_us, number, kind in happened
        ],
    }


def _phases(events: Events, end_us: int) -> Counter[str]:
    """Microseconds of one prompt in each phase; what has not ended goes on until `end_us`."""
    spent: Counter[str] = Counter()
    phase, since_us, is_prefilled = "", 0, False
    for kind, time_us in events:
        spent[phase] += time_us - since_us
        since_us = time_us
        # the engine may have prefilled it before, but another one has to again
        is_prefilled = kind is not EventKind.QUEUED and (
            is_prefilled or kind is EventKind.PREFILLED
        )
        phase = _next_phase(phase, kind, is_prefilled=is_prefilled)
    spent[phase] += end_us - since_us
    return spent


def _next_phase(phase: str, kind: EventKind, *, is_prefilled: bool) -> str:
    if kind in (EventKind.PREEMPTED_SWAP, EventKind.PREEMPTED_RECOMPUTE):
        return _PREEMPTED
    if kind is EventKind.PREFILLED and phase == _PREEMPTED:
        # it has left the batch before its first token was known
        return _PREEMPTED
    if kind is EventKind.QUEUED:
        return _QUEUE
    if kind is EventKind.ENDED:
        return ""
    return _DECODE if is_prefilled else _PREFILL


def _seconds(us: int) -> float:
    return round(us / 1e6, 6)
