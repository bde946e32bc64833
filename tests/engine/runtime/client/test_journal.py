"""What is kept of a request, and what another engine gets of it."""

from dataclasses import replace

from engine.runtime.client.journal import Journal
from engine.runtime.messages import REQUESTS
from engine.runtime.protocol import BeamStep, Delta
from engine.types import (
    BEAM_CHOICE,
    PROMPT_CHOICE,
    FinishReason,
    Progress,
    Request,
    SamplingParams,
    SearchSteps,
    Terms,
    float32,
    int32,
)

NONE, STOP, ABORT = FinishReason.NONE, FinishReason.STOP, FinishReason.ABORT


def journal(**options: object) -> Journal:
    sampling = SamplingParams(max_tokens=9, **options)  # type: ignore[arg-type]
    request = Request(
        request_id=1,
        prompt=int32([4, 5]),
        sampling=sampling,
        salt=b"tenant",
        terms=Terms(account=b"key", max_wait_s=10.0),
    )
    request = replace(request, session=b"talk")
    return Journal(request, now_s=100.0)


def delta(choice: int, *tokens: int, reason: FinishReason = NONE) -> Delta:
    return Delta(
        choice=choice,
        tokens=int32(tokens),
        logprobs=float32([0.0] * len(tokens)),
        finish_reason=reason,
    )


def progress_of(kept: Journal) -> Progress:
    request = kept.resumed(2, 103.0, solo_tokens=0)
    progress = REQUESTS.decode(REQUESTS.encode(request)).progress
    assert progress is not None
    return progress


def test_a_request_of_which_nothing_has_come_is_as_it_was_but_for_its_id() -> None:
    kept = journal(n=2)
    assert not kept.has_begun
    new = kept.new(2)
    assert (new.request_id, new.prompt, new.salt) == (2, int32([4, 5]), b"tenant")
    assert new.session == b"talk"
    assert new.progress is None
    assert new.terms == Terms(account=b"key", max_wait_s=10.0)
    resumed = kept.resumed(3, 103.0, solo_tokens=16)
    assert (resumed.request_id, resumed.prompt, resumed.salt) == (3, int32([4, 5]), b"tenant")
    assert resumed.session == b"talk"
    assert resumed.progress is not None
    assert (resumed.progress.age_s, resumed.progress.solo_tokens) == (3.0, 9)


def test_tokens_of_open_choices_are_kept_and_of_others_their_end() -> None:
    kept = journal(n=3)
    kept.note(delta(0, 1, 2))
    kept.note(delta(1, 3))
    kept.note(delta(2, 4))
    kept.note(delta(0, 5))
    kept.note(delta(1, 6, 7, reason=STOP))
    kept.end(2, ABORT)
    progress = progress_of(kept)
    assert progress.finish_reasons.tolist() == [NONE, STOP, ABORT]
    assert progress.counts == int32([3, 0, 0])
    assert progress.tokens == int32([1, 2, 5])
    assert progress.search is None


def test_what_comes_later_is_not_part_of_what_was_submitted() -> None:
    kept = journal(n=1)
    kept.note(delta(0, 1))
    before = progress_of(kept)
    kept.note(delta(0, 2))
    assert before.tokens == int32([1])
    assert progress_of(kept).tokens == int32([1, 2])


def test_scores_of_the_prompt_are_counted() -> None:
    kept = journal(prompt_logprobs=0)
    kept.note(delta(PROMPT_CHOICE, 5, 6, 7))
    kept.note(delta(PROMPT_CHOICE, 8))
    assert kept.has_begun
    assert progress_of(kept).num_prompt_scored == 4


def step(*rows: tuple[int, int, int, float], tops: list[list[tuple[int, float]]]) -> BeamStep:
    indices, parents, tokens, logprobs = zip(*rows, strict=True)
    pairs = [pair for row in tops for pair in row]
    return BeamStep(
        indices=int32(indices),
        parents=int32(parents),
        tokens=int32(tokens),
        logprobs=float32(logprobs),
        top_counts=int32([len(row) for row in tops]),
        top_tokens=int32([token for token, _ in pairs]),
        top_logprobs=float32([logprob for _, logprob in pairs]),
    )


def test_steps_of_a_search_are_kept_as_they_were_reported() -> None:
    kept = journal(beam_width=2, report_beams=True, n=2)
    steps = (
        step((0, 0, 7, -1.0), (1, 0, 8, -2.0), tops=[]),
        step((-1, 1, 3, -1.0), (0, 0, 7, -0.5), tops=[[(3, -1.0)], [(7, -0.5), (9, -4.0)]]),
        step((0, 0, 6, -0.25), tops=[]),
    )
    kept.note(Delta(choice=BEAM_CHOICE, tokens=int32(), logprobs=float32(), beam_steps=steps[:2]))
    kept.note(Delta(choice=BEAM_CHOICE, tokens=int32(), logprobs=float32(), beam_steps=steps[2:]))
    assert kept.has_begun
    progress = progress_of(kept)
    assert (progress.finish_reasons.tolist(), progress.counts, progress.tokens) == (
        [],
        int32(),
        int32(),
    )
    assert progress.search == SearchSteps(
        counts=int32([2, 2, 1]),
        indices=int32([0, 1, -1, 0, 0]),
        parents=int32([0, 0, 1, 0, 0]),
        tokens=int32([7, 8, 3, 7, 6]),
        logprobs=float32([-1.0, -2.0, -1.0, -0.5, -0.25]),
        top_counts=int32([0, 0, 1, 2, 0]),
        top_tokens=int32([3, 7, 9]),
        top_logprobs=float32([-1.0, -0.5, -4.0]),
    )


def test_a_search_that_reports_nothing_has_nothing_to_go_on_with() -> None:
    kept = journal(beam_width=2, n=2)
    kept.end(1, ABORT)
    assert progress_of(kept) == Progress(age_s=3.0)


def test_a_search_that_reports_nothing_is_on_probation_to_its_end() -> None:
    silent, open_one = journal(beam_width=2), journal(beam_width=2, report_beams=True)
    requests = [kept.resumed(2, 103.0, solo_tokens=3) for kept in (silent, open_one)]
    assert [each.progress and each.progress.solo_tokens for each in requests] == [9, 3]
    unsuspected = silent.resumed(2, 103.0, solo_tokens=0).progress
    assert unsuspected is not None
    assert unsuspected.solo_tokens == 0
