from app.telemetry.traces.span_tree import SpanNode, span_tree
from engine.types import EventKind
from tests.app.telemetry.records import ended

QUEUED, ADMITTED, PREFILLED = EventKind.QUEUED, EventKind.ADMITTED, EventKind.PREFILLED
SWAP, RECOMPUTE = EventKind.PREEMPTED_SWAP, EventKind.PREEMPTED_RECOMPUTE
RESUMED, ENDED = EventKind.RESUMED, EventKind.ENDED

START_US = 1_000_000_000


def tree(*events: tuple[EventKind, int], seconds: float = 1.0) -> SpanNode:
    """Of a request of a second, whose events are in milliseconds since its arrival."""
    at_us = [(kind, START_US + 1000 * at_ms) for kind, at_ms in events]
    return span_tree(ended(seconds, events=[at_us]), "chat tiny")


def shown(node: SpanNode) -> list[tuple[str, int, int]]:
    """Names with start and end in milliseconds since the arrival."""
    return [
        (each.name, (each.start_us - START_US) // 1000, (each.end_us - START_US) // 1000)
        for each in node.walk()
    ]


def check_nested(node: SpanNode) -> None:
    for child in node.children:
        assert node.start_us <= child.start_us <= child.end_us <= node.end_us
        check_nested(child)


def test_phases_follow_each_other_without_a_gap() -> None:
    root = tree((QUEUED, 200), (ADMITTED, 250), (PREFILLED, 400), (ENDED, 950))
    assert shown(root) == [
        ("chat tiny", 0, 1000),
        ("read", 0, 100),
        ("submit", 100, 200),
        ("queue", 200, 250),
        ("prefill", 250, 400),
        ("decode", 400, 950),
    ]


def test_each_preemption_is_a_span_in_its_phase() -> None:
    root = tree(
        (QUEUED, 200), (ADMITTED, 250), (RECOMPUTE, 260), (RESUMED, 270), (PREFILLED, 400),
        (SWAP, 500), (RESUMED, 600), (SWAP, 700), (RECOMPUTE, 720), (RESUMED, 800),
        (PREFILLED, 850), (ENDED, 950),
    )  # fmt: skip
    prefill, decode = root.children[-2:]
    assert shown(prefill) == [("prefill", 250, 400), ("preempted", 260, 270)]
    assert shown(decode) == [("decode", 400, 950), ("preempted", 500, 600), ("preempted", 700, 800)]
    assert [child.attributes["pagoda.how"] for child in decode.children] == ["swap", "recompute"]
    check_nested(root)


def test_what_goes_on_elsewhere_is_linked_to_what_was_lost() -> None:
    root = tree(
        (QUEUED, 200), (ADMITTED, 250), (PREFILLED, 300),
        (QUEUED, 500), (ADMITTED, 520), (PREFILLED, 600), (ENDED, 900),
    )  # fmt: skip
    lost, resume = root.children[-2:]
    assert (lost.name, resume.name) == ("decode", "resume")
    assert resume.links == [lost]
    assert [child.name for child in resume.children] == ["queue", "prefill", "decode"]
    check_nested(root)


def test_clocks_that_differ_never_make_a_span_leave_its_parent() -> None:
    for shift_ms in (-5_000, -300, 300, 5_000):
        events = [(QUEUED, 200), (ADMITTED, 250), (PREFILLED, 300), (SWAP, 400), (ENDED, 900)]
        check_nested(tree(*((kind, at_ms + shift_ms) for kind, at_ms in events)))


def test_a_refused_request_has_what_it_came_to() -> None:
    record = ended(0.1, code=429, submitted_s=0.0, events=[])
    assert [node.name for node in span_tree(record, "chat tiny").walk()] == ["chat tiny", "read"]
