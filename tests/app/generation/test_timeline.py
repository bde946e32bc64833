"""The phases of a request, from what engines report of it."""

from app.generation.timeline import timeline
from engine.types import EventKind as Kind

# microseconds since the epoch
START = 1_000_000_000_000_000


def at(*events: tuple[Kind, float]) -> list[tuple[Kind, int]]:
    return [(kind, START + round(1e6 * seconds)) for kind, seconds in events]


ORDINARY = at((Kind.QUEUED, 0.1), (Kind.ADMITTED, 0.4), (Kind.PREFILLED, 1.0), (Kind.ENDED, 3.0))


def test_phases_follow_one_another() -> None:
    found = timeline([ORDINARY], START, START + 3_500_000)
    phases = {name: found[f"{name}_s"] for name in ("queue", "prefill", "decode", "preempted")}
    assert phases == {"queue": 0.3, "prefill": 0.6, "decode": 2.0, "preempted": 0.0}
    assert (found["time_to_first_token_s"], found["total_s"]) == (1.0, 3.5)
    assert found["preemptions"] == {"swap": 0, "recompute": 0}
    assert found["engine_losses"] == 0
    assert found["events"][1] == {"prompt": 0, "event": "admitted", "at_s": 0.4}


def test_time_out_of_the_batch_counts_for_itself() -> None:
    events = at(
        (Kind.QUEUED, 0.0), (Kind.ADMITTED, 1.0), (Kind.PREEMPTED_RECOMPUTE, 2.0),
        (Kind.PREFILLED, 2.5), (Kind.RESUMED, 4.0), (Kind.PREEMPTED_SWAP, 5.0),
        (Kind.RESUMED, 5.5), (Kind.ENDED, 7.0),
    )  # fmt: skip
    found = timeline([events], START, START + 8_000_000)
    assert (found["prefill_s"], found["preempted_s"], found["decode_s"]) == (1.0, 2.5, 2.5)
    assert found["preemptions"] == {"swap": 1, "recompute": 1}


def test_another_engine_begins_again() -> None:
    lost = ORDINARY[:3]
    again = at((Kind.QUEUED, 2.0), (Kind.ADMITTED, 2.5), (Kind.PREFILLED, 3.5), (Kind.ENDED, 4.0))
    found = timeline([lost + again], START, START + 4_000_000)
    assert (found["queue_s"], found["prefill_s"], found["decode_s"]) == (0.8, 1.6, 1.5)
    assert (found["engine_losses"], found["time_to_first_token_s"]) == (1, 1.0)


def test_prompts_are_served_beside_each_other() -> None:
    slow = at((Kind.QUEUED, 0.2), (Kind.ADMITTED, 1.2), (Kind.PREFILLED, 1.3), (Kind.ENDED, 1.4))
    found = timeline([ORDINARY, slow, []], START, START + 4_000_000)
    assert (found["queue_s"], found["decode_s"]) == (1.0, 2.0)
    assert found["engine_losses"] == 0
    assert [(each["prompt"], each["event"]) for each in found["events"]][:3] == [
        (0, "queued"), (1, "queued"), (0, "admitted"),
    ]  # fmt: skip


def test_what_has_not_ended_goes_on_and_other_clocks_do_not_matter() -> None:
    # a stop string ends the text before its engine knows
    found = timeline([ORDINARY[:3]], START, START + 1_600_000)
    assert found["decode_s"] == 0.6
    ahead = timeline([ORDINARY], START + 2_000_000, START + 2_500_000)
    assert (ahead["time_to_first_token_s"], ahead["decode_s"]) == (0.0, 0.5)
    assert timeline([[]], START, START)["time_to_first_token_s"] is None
