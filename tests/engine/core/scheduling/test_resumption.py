"""What a group takes up of a lost engine, and what no engine can have come to."""

from array import array
from dataclasses import replace
from typing import Any

import pytest

from engine.core.scheduling.grouping import make_group
from engine.core.sequence_group import SequenceGroup, Status
from engine.errors import InvalidRequest
from engine.types import (
    FinishReason,
    Pin,
    Progress,
    Request,
    SamplingParams,
    SearchSteps,
    float32,
    int32,
)
from tests.engine.core.harness.groups import CAPACITY, CONFIG

NONE, STOP, ABORT = FinishReason.NONE, FinishReason.STOP, FinishReason.ABORT
STEPS = SearchSteps(
    counts=int32([2, 3]),
    indices=int32([0, 1, -1, 0, 2]),
    parents=int32([0, 0, 0, 1, 1]),
    tokens=int32([7, 8, 5, 8, 9]),
    logprobs=float32([-1.0, -2.0, -3.0, -0.5, -0.75]),
)
SEARCH = {"beam_width": 3, "report_beams": True, "stop_token_ids": (5,)}


def resumed(progress: Progress, **options: Any) -> SequenceGroup:
    pin = options.pop("pin", None)
    sampling = SamplingParams(**({"max_tokens": 6} | options))
    request = Request(
        request_id=1, prompt=int32([1, 2, 3]), sampling=sampling, progress=progress, pin=pin
    )
    return make_group(request, 40, CONFIG, CAPACITY)


def choices(*outputs: tuple[list[int], FinishReason]) -> Progress:
    return Progress(
        finish_reasons=array("b", [reason for _, reason in outputs]),
        counts=int32([len(tokens) for tokens, _ in outputs]),
        tokens=int32([token for tokens, _ in outputs for token in tokens]),
    )


def test_every_choice_goes_on_with_its_own_tokens() -> None:
    group = resumed(choices(([4, 5], NONE), ([], STOP), ([6], NONE)), n=3)
    assert group.status is Status.WAITING
    assert [(s.sequence_id, s.choice) for s in group.sequences] == [(40, 0), (41, 1), (42, 2)]
    assert [s.output.tolist() for s in group.sequences] == [[4, 5], [], [6]]
    assert [s.finish_reason for s in group.sequences] == [NONE, STOP, NONE]
    assert group.num_pending_forks == 0
    # what was found in a cache was reported with the first tokens
    assert group.reports.num_cached_tokens == 0


def test_before_the_first_token_siblings_are_still_to_be_forked() -> None:
    group = resumed(choices(([], NONE), ([], ABORT), ([], NONE)), n=3)
    assert len(group.sequences) == 1
    assert group.num_pending_forks == 2
    assert group.deferred_aborts == {1}
    assert group.reports.num_cached_tokens == -1


def test_a_request_of_which_nothing_has_come_begins_anew() -> None:
    group = resumed(Progress(age_s=3.0, solo_tokens=4), n=3)
    assert (len(group.sequences), group.num_pending_forks) == (1, 2)
    assert group.is_on_probation


@pytest.mark.parametrize(
    ("progress", "options"),
    [
        (replace(choices(([4, 5], NONE), ([6], NONE)), solo_tokens=2), {"n": 2}),
        (Progress(search=STEPS, solo_tokens=2), SEARCH),
    ],
    ids=["choices", "beams"],
)
def test_probation_ends_with_so_many_tokens_more(
    progress: Progress, options: dict[str, Any]
) -> None:
    group = resumed(progress, **options)
    longest = max(group.sequences, key=lambda sequence: len(sequence.output))
    longest.output.append(7)
    assert group.is_on_probation
    longest.output.append(7)
    assert not group.is_on_probation
    assert group.is_suspect


def test_scores_of_the_prompt_are_not_reported_again() -> None:
    assert resumed(Progress(num_prompt_scored=2), prompt_logprobs=0).num_prompt_reported == 2


def test_beams_go_on_at_their_places_and_others_may_be_forked_into() -> None:
    group = resumed(Progress(search=STEPS), **SEARCH)
    assert [s.output.tolist() for s in group.sequences] == [[8, 8], [], [8, 9]]
    assert [s.finish_reason for s in group.sequences] == [NONE, STOP, NONE]
    assert group.beam is not None
    assert [found.tokens for found in group.beam.finished] == [(7, 5)]
    assert group.num_rows == 3


def test_output_of_beams_that_is_in_the_cache_is_no_part_of_the_prompt() -> None:
    group = resumed(Progress(search=STEPS), **SEARCH)
    group.start_prefill([4, 0])
    assert group.reports.num_cached_tokens == 3


def steps(**changes: Any) -> Progress:
    return Progress(search=replace(STEPS, **changes))


Case = tuple[Progress, dict[str, Any], str]
GOOD = choices(([4], NONE), ([5], NONE))
BAD: list[Case] = [
    (Progress(age_s=float("nan")), {}, "age"),
    (Progress(age_s=-1.0), {}, "age"),
    (Progress(age_s=float("inf")), {}, "age"),
    (Progress(), {"pin": Pin(name="p"), "max_tokens": 1}, "prefix"),
    (Progress(num_prompt_scored=1), {}, "scored"),
    (Progress(num_prompt_scored=3), {"prompt_logprobs": 0}, "scored"),
    (Progress(num_prompt_scored=-1), {"prompt_logprobs": 0}, "scored"),
    (GOOD, {"n": 3}, "2 choices, not 3"),
    (replace(GOOD, counts=int32([1])), {"n": 2}, "count"),
    (replace(GOOD, counts=int32([1, 2])), {"n": 2}, "fit together"),
    (replace(GOOD, counts=int32([3, -1])), {"n": 2}, "negative"),
    (replace(GOOD, tokens=int32([4, -1])), {"n": 2}, "negative"),
    (replace(GOOD, finish_reasons=array("b", [0, 99])), {"n": 2}, "kind"),
    (choices(([4] * 6, NONE)), {}, "6 tokens of at most 6"),
    (choices(([], STOP)), {}, "every choice has ended"),
    (choices(([4], NONE), ([4], STOP)), {"n": 2}, "has tokens"),
    (choices(([4], NONE), ([], NONE)), {"n": 2}, "others have not"),
    (choices(([], NONE), ([], STOP)), {"n": 2}, "unbegun"),
    (choices(([4], NONE)), {"beam_width": 2}, "steps only"),
    (Progress(search=STEPS), {"beam_width": 3}, "no beams were"),
    (Progress(search=STEPS), {}, "no beams were"),
    (steps(), SEARCH | {"max_tokens": 2}, "has ended"),
    (steps(indices=int32([0, 1, -1, 0, 3])), SEARCH, "no beam 3"),
    (steps(indices=int32([0, 1, -3, 0, 2])), SEARCH, "no beam -3"),
    (steps(indices=int32([0, 1, -1, 2, 2])), SEARCH, "twice"),
    (steps(indices=int32([0, 1, 1, 0, 2])), SEARCH, "does not end"),
    (steps(parents=int32([0, 0, 0, 2, 1])), SEARCH, "no beam 2"),
    (steps(tokens=int32([7, 8, 5, -1, 9])), SEARCH, "no token"),
    (steps(counts=int32([2, 3, 0])), SEARCH, "has ended"),
    (steps(counts=int32([2, 2])), SEARCH, "fit together"),
    (steps(counts=int32([6, -1])), SEARCH, "fit together"),
    (steps(parents=int32([0])), SEARCH, "fit together"),
    (steps(top_counts=int32([1, 0, 0, 0, 0])), SEARCH, "fit together"),
    (steps(top_counts=int32([0])), SEARCH, "fit together"),
]


@pytest.mark.parametrize(("progress", "options", "reason"), BAD, ids=lambda value: str(value)[:30])
def test_what_no_engine_can_have_come_to_is_refused(
    progress: Progress, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        resumed(progress, **options)
    assert caught.value.param == "progress"
