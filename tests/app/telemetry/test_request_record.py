from typing import Any

import pytest

from app.telemetry.request_record import GONE, ChoiceTimes
from engine.types import EventKind
from tests.app.telemetry.records import ended


def reasons(*each: str | None) -> dict[str, Any]:
    return {"choices": {number: ChoiceTimes(reason=reason) for number, reason in enumerate(each)}}


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        (reasons("stop", "stop"), "stop"),
        (reasons("length"), "length"),
        (reasons("length", "stop"), "mixed"),
        (reasons("error", "stop"), "mixed"),
        (reasons("abort"), "abort"),
        (reasons(None), "abort"),
        ({"code": GONE}, "disconnect"),
        ({"code": GONE, "is_unread": True}, "slow"),
        ({"has_failed": True, "is_unread": True}, "slow"),
        ({"code": 429}, "overloaded"),
        ({"code": 400}, "refused"),
        ({"code": 503}, "error"),
        ({"has_failed": True}, "error"),
        ({"choices": {}}, "stop"),
    ],
    ids=str,
)
def test_a_request_has_one_outcome(fields: dict[str, Any], outcome: str) -> None:
    assert ended(**fields).outcome == outcome


def test_the_first_token_is_the_first_of_any_choice() -> None:
    assert ended().first_token_s == 100.25
    assert ended(choices={}).first_token_s is None
    assert ended(**reasons("stop")).first_token_s is None


def test_tokens_of_a_choice_are_noted_as_they_come() -> None:
    record = ended(choices={})
    record.note(0, 0, None)
    record.note(0, 3, None)
    first_s = record.choices[0].first_s
    record.note(0, 2, "length")
    choice = record.choices[0]
    assert (choice.num_tokens, choice.reason, choice.first_s) == (5, "length", first_s)
    assert choice.last_s >= first_s > 0


def test_preemptions_of_all_prompts_count() -> None:
    events = [
        [(EventKind.QUEUED, 1), (EventKind.PREEMPTED_SWAP, 2)],
        [(EventKind.PREEMPTED_RECOMPUTE, 3), (EventKind.ENDED, 4)],
    ]
    assert ended(events=events).num_preemptions == 2


def test_each_engine_after_the_first_is_a_resume() -> None:
    once = [(EventKind.QUEUED, 1), (EventKind.ADMITTED, 2)]
    assert ended(events=[once, []]).num_resumes == 0
    record = ended(events=[[*once, *once, (EventKind.QUEUED, 5)], once, once + once])
    assert record.num_resumes == 3
