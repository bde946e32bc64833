"""The phases of a request as spans, from its record.

chat MODEL               from the first byte to the last
  read                   body, template, tokens
  submit                 until an engine has accepted it
  queue                  until it has blocks
  prefill                until its first token
  decode                 until its end
    preempted            while it is out of the batch
  resume                 once more, on another engine: queue, prefill and decode below it
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from app.telemetry.request_record import RequestRecord
from engine.types import EventKind

_HOW = {EventKind.PREEMPTED_SWAP: "swap", EventKind.PREEMPTED_RECOMPUTE: "recompute"}
_NAMES = {
    EventKind.QUEUED: "queue",
    EventKind.ADMITTED: "prefill",
    EventKind.PREFILLED: "decode",
}


@dataclass(eq=False, slots=True)
class SpanNode:
    """A span to be made.

    Attributes:
        start_us, end_us: microseconds since the epoch.
        attributes: of the span.
        links: spans that it goes on from.
    """

    name: str
    start_us: int
    end_us: int
    attributes: dict[str, str | int | float] = field(default_factory=dict)
    children: list["SpanNode"] = field(default_factory=list)
    links: list["SpanNode"] = field(default_factory=list)

    def walk(self) -> Iterator["SpanNode"]:
        """Yield it and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()


def span_tree(record: RequestRecord, name: str) -> SpanNode:
    """Return the spans of a request that has ended; each lies within its parent."""
    root = SpanNode(name, record.arrived_us, _us(record, record.ended_s))
    if record.read_s:
        root.children.append(SpanNode("read", root.start_us, _us(record, record.read_s)))
    if record.submitted_s:
        read_us, submitted_us = (_us(record, s) for s in (record.read_s, record.submitted_s))
        root.children.append(SpanNode("submit", read_us, submitted_us))
    for events in record.events:
        before: SpanNode | None = None
        for attempt in _attempts(events):
            parent = root
            if before is not None:
                parent = SpanNode("resume", attempt[0][1], root.end_us, links=[before])
                root.children.append(parent)
            parent.children += _phases(attempt, root.end_us)
            before = parent.children[-1] if parent.children else parent
    _clamp(root)
    return root


def _us(record: RequestRecord, at_s: float) -> int:
    return record.arrived_us + round(1e6 * (at_s - record.arrived_s))


def _attempts(
    events: Sequence[tuple[EventKind, int]],
) -> list[list[tuple[EventKind, int]]]:
    """Split events where the request was queued again, by another engine."""
    attempts: list[list[tuple[EventKind, int]]] = []
    for event in events:
        if event[0] is EventKind.QUEUED or not attempts:
            attempts.append([])
        attempts[-1].append(event)
    return attempts


def _phases(events: Sequence[tuple[EventKind, int]], end_us: int) -> list[SpanNode]:
    """Return queue, prefill and decode as far as they were reached."""
    phases: list[SpanNode] = []
    for kind, time_us in events:
        if kind in _NAMES and _NAMES[kind] not in [phase.name for phase in phases]:
            if phases:
                phases[-1].end_us = time_us
            phases.append(SpanNode(_NAMES[kind], time_us, end_us))
        elif phases:
            _note_in_phase(phases[-1], kind, time_us, end_us)
    return phases


def _note_in_phase(phase: SpanNode, kind: EventKind, time_us: int, end_us: int) -> None:
    away = phase.children[-1] if phase.children else None
    is_away = away is not None and away.end_us == end_us
    if kind in _HOW:
        # a group that is swapped out and then recomputed is away all along
        if away is None or not is_away:
            away = SpanNode("preempted", time_us, end_us)
            phase.children.append(away)
        away.attributes["pagoda.how"] = _HOW[kind]
    elif kind in (EventKind.RESUMED, EventKind.ENDED):
        if away is not None and is_away:
            away.end_us = time_us
        if kind is EventKind.ENDED:
            phase.end_us = time_us


def _clamp(node: SpanNode) -> None:
    """Keep what other machines' clocks say within what this one has seen."""
    for child in node.children:
        child.start_us = min(max(child.start_us, node.start_us), node.end_us)
        child.end_us = min(max(child.end_us, child.start_us), node.end_us)
        _clamp(child)
