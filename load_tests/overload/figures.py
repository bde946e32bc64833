"""Sums up an overload: goodput, waits, refusals, shares, and the CPU time that all of it took."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import quantiles

from load_tests.overload.asking import REFUSED, Outcome

# of the arrivals, after which the queue is full: what is compared is measured from then on
FULL_AFTER = 1 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadFigures:
    """What came of a load; times in seconds.

    Attributes:
        capacity: output tokens per second without overload.
        goodput: those of whole answers, per second, while all came that came beyond it.
        num_whole, num_refused, num_expired, num_other: answers by kind; expired ones were refused
            after they had waited for longer than half the queue's deadline.
        num_computed: prompts that engines have computed in the meantime; None if nobody knows.
        first_token_s: of accepted requests, median and longest.
        refusal_s: until a request was refused, median and 99 of 100.
        probe_s: of one request after the load.
        shares: of the output tokens while both keys had requests waiting, by key.
        cpu_ms: by role of a process, of an answered request without overload, and what each
            refusal cost beside the answers under it.
    """

    capacity: float
    goodput: float
    num_whole: int
    num_refused: int
    num_expired: int
    num_other: int
    num_computed: int | None = None
    first_token_s: tuple[float, float]
    refusal_s: tuple[float, float]
    probe_s: float
    shares: tuple[float, ...]
    cpu_ms: dict[str, tuple[float, float]] = field(default_factory=dict)


def figures_of(
    outcomes: Sequence[Outcome], probe: Outcome, capacity: float, queue_s: float
) -> OverloadFigures:
    """Sum up what came of the load, and of the probe behind it."""
    whole = [each for each in outcomes if each.is_whole]
    refused = [each for each in outcomes if each.status == REFUSED]
    times = [each.end_s - each.sent_s for each in refused]
    late = [each for each in times if each > queue_s / 2]
    first = [each.first_s - each.sent_s for each in whole if each.first_s is not None]
    begin_s, end_s = full_time(outcomes)
    return OverloadFigures(
        capacity=capacity,
        goodput=tokens_between(whole, begin_s, end_s) / (end_s - begin_s),
        num_whole=len(whole),
        num_refused=len(times) - len(late),
        num_expired=len(late),
        num_other=len(outcomes) - len(whole) - len(refused),
        first_token_s=_two(first, 1.0),
        refusal_s=_two([each for each in times if each <= queue_s / 2], 0.99),
        probe_s=probe.end_s - probe.sent_s,
        shares=_shares(whole, begin_s, end_s),
    )


def full_time(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """From when on the queue is full until the last arrival."""
    # what has expired may be sent again long after
    arrivals = [each.sent_s for each in outcomes if not each.is_again]
    first_s, last_s = min(arrivals), max(arrivals)
    return first_s + FULL_AFTER * (last_s - first_s), max(last_s, first_s + 1e-3)


def tokens_between(outcomes: Sequence[Outcome], begin_s: float, end_s: float) -> float:
    """Output of a time, as if the tokens of each answer had come evenly."""
    total = 0.0
    for each in outcomes:
        if each.first_s is not None:
            seconds = max(each.end_s - each.first_s, 1e-6)
            inside = min(each.end_s, end_s) - max(each.first_s, begin_s)
            total += each.num_tokens * max(0.0, inside) / seconds
    return total


def cpu_of_refusals(
    calm: dict[str, float],
    num_calm: float,
    loaded: dict[str, float],
    num_loaded: float,
    *,
    num: int,
) -> dict[str, tuple[float, float]]:
    """CPU ms of an answer, and what is left for each refusal if answers cost the same beside them.

    Args:
        calm, loaded: CPU seconds by role, without refusals and with them.
        num_calm, num_loaded: answers in these times; parts count.
        num: refusals.
    """
    found = {}
    for role, seconds in sorted(loaded.items()):
        each = calm.get(role, 0.0) / max(num_calm, 1e-9)
        found[role] = 1e3 * each, 1e3 * (seconds - each * num_loaded) / max(num, 1)
    return found


def _shares(whole: Sequence[Outcome], begin_s: float, end_s: float) -> tuple[float, ...]:
    """Output of each key, the lesser first, of what has begun in a time."""
    keys = {each.key for each in whole}
    counted = [
        each for each in whole if each.first_s is not None and begin_s <= each.first_s < end_s
    ]
    total = sum(each.num_tokens for each in counted) or 1
    sums = (sum(each.num_tokens for each in counted if each.key == key) for key in keys)
    return tuple(sorted(number / total for number in sums))


def _two(seconds: list[float], upper: float) -> tuple[float, float]:
    """The median, and what a share of all is below."""
    if len(seconds) < 2:
        return (seconds[0], seconds[0]) if seconds else (0.0, 0.0)
    hundredths = quantiles(seconds, n=100, method="inclusive")
    return hundredths[49], max(seconds) if upper == 1.0 else hundredths[round(100 * upper) - 1]
