"""Beam search against the whole tree, and against a plain search that keeps every list."""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from engine.core.decoding.beam_search import BeamSearch, Child, EarlyStopping
from engine.types import (
    ENDED_BY_PATTERN,
    PATTERN_MET,
    SearchSteps,
    StopPattern,
    int32,
)
from tests.fakes.symbolic_executor import EMPTY_PREFIX, SymbolicModel, extend_hash

Found = list[tuple[tuple[int, ...], float]]

EARLY: tuple[EarlyStopping, ...] = (True, False, "never")
PENALTIES = (0.0, 0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True)
class Case:
    """What a search is made of; the seed stands for the prompt."""

    width: int
    max_tokens: int
    stop_ids: frozenset[int]
    length_penalty: float
    early_stopping: EarlyStopping
    seed: int


def search(model: SymbolicModel, case: Case) -> Found:
    """Runs a search to its end; the prefixes follow the beams by index, as rows do."""
    beam = BeamSearch(
        width=case.width,
        max_tokens=case.max_tokens,
        stop_ids=case.stop_ids,
        length_penalty=case.length_penalty,
        early_stopping=case.early_stopping,
    )
    prefixes = {0: extend_hash(EMPTY_PREFIX, case.seed)}
    while not beam.is_done:
        assert len(prefixes) <= case.width
        offers = [
            beam.offer(index, model.candidates(prefix, beam.num_candidates))
            for index, prefix in prefixes.items()
        ]
        assert offers == [False] * (len(offers) - 1) + [True]
        prefixes = {
            index: extend_hash(prefixes[child.parent], child.token)
            for index, child in beam.advance().items()
        }
    return [(found.tokens, found.score) for found in beam.finished]


def score_all(
    model: SymbolicModel, max_tokens: int, stop_ids: frozenset[int], penalty: float, seed: int
) -> Found:
    """Every complete continuation, best first."""

    def grow(tokens: tuple[int, ...], prefix: int, total: float) -> Iterator[tuple[int, ...]]:
        for token, logprob in model.candidates(prefix, model.vocab_size):
            longer, cumulative = (*tokens, token), total + logprob
            if token in stop_ids or len(longer) == max_tokens:
                scores[longer] = cumulative / len(longer) ** penalty
                yield longer
            else:
                yield from grow(longer, extend_hash(prefix, token), cumulative)

    scores: dict[tuple[int, ...], float] = {}
    found = list(grow((), extend_hash(EMPTY_PREFIX, seed), 0.0))
    return sorted(((tokens, scores[tokens]) for tokens in found), key=lambda pair: -pair[1])


@pytest.mark.parametrize("length_penalty", PENALTIES)
@pytest.mark.parametrize("stop_ids", [frozenset(), frozenset({0}), frozenset({0, 2})])
@pytest.mark.parametrize("early_stopping", EARLY)
def test_with_beams_for_everything_the_whole_tree_is_ranked(
    early_stopping: EarlyStopping, stop_ids: frozenset[int], length_penalty: float
) -> None:
    for seed in range(5):
        model = SymbolicModel(3)
        case = Case(81, 4, stop_ids, length_penalty, early_stopping, seed)
        found = search(model, case)
        expected = score_all(model, 4, stop_ids, length_penalty, seed)
        assert [score for _, score in found] == pytest.approx([score for _, score in expected])
        assert {tokens for tokens, _ in found} == {tokens for tokens, _ in expected}


@pytest.mark.parametrize("length_penalty", PENALTIES)
def test_never_stopping_early_finds_the_best_of_the_tree(length_penalty: float) -> None:
    # as many beams as the widest step has children, fewer than there are continuations
    for seed in range(20):
        model, stop_ids = SymbolicModel(3), frozenset({0})
        found = search(model, Case(12, 3, stop_ids, length_penalty, "never", seed))
        expected = score_all(model, 3, stop_ids, length_penalty, seed)[:12]
        assert [score for _, score in found] == pytest.approx([score for _, score in expected])


def plain_search(model: SymbolicModel, case: Case) -> list[float]:
    """The same rules on plain lists over the whole vocabulary; the scores of the finished."""
    beams: Found = [((), 0.0)]
    finished: list[float] = []
    for length in range(1, case.max_tokens + 1):
        children: Found = []
        for tokens, total in beams:
            prefix = extend_hash(EMPTY_PREFIX, case.seed)
            for token in tokens:
                prefix = extend_hash(prefix, token)
            every = model.candidates(prefix, model.vocab_size)
            children += [((*tokens, token), total + logprob) for token, logprob in every]
        children.sort(key=lambda child: -child[1])
        is_last = length == case.max_tokens
        ended = [c for c in children[: case.width] if is_last or c[0][-1] in case.stop_ids]
        finished = sorted(
            finished + [t / length**case.length_penalty for _, t in ended], reverse=True
        )
        finished = finished[: case.width]
        beams = [c for c in children if not is_last and c[0][-1] not in case.stop_ids][: case.width]
        if len(finished) < case.width or not beams:
            continue
        reachable = (
            case.max_tokens
            if case.early_stopping == "never" and case.length_penalty > 0
            else length
        )
        if (
            case.early_stopping is True
            or beams[0][1] / reachable**case.length_penalty <= finished[-1]
        ):
            break
    return finished


@pytest.mark.parametrize("width", range(1, 9))
@pytest.mark.parametrize("early_stopping", EARLY)
def test_narrow_searches_equal_a_plain_one(early_stopping: EarlyStopping, width: int) -> None:
    stops = (frozenset[int](), frozenset({1}), frozenset({1, 4, 6}))
    for stop_ids, penalty, seed in itertools.product(stops, PENALTIES, range(4)):
        case = Case(width, 7, stop_ids, penalty, early_stopping, seed)
        model = SymbolicModel(11)
        found = search(model, case)
        assert [score for _, score in found] == pytest.approx(plain_search(model, case))


def make(width: int = 2, max_tokens: int = 5, stop_ids: frozenset[int] = frozenset()) -> BeamSearch:
    return BeamSearch(width=width, max_tokens=max_tokens, stop_ids=stop_ids)


def test_a_parent_that_goes_on_keeps_its_index_for_its_best_child() -> None:
    beam = make(width=3)
    beam.offer(0, [(5, -1.0), (6, -2.0), (7, -3.0)])
    assert {index: child.token for index, child in beam.advance().items()} == {0: 5, 1: 6, 2: 7}
    beam.offer(0, [(1, -9.0)])
    beam.offer(1, [(2, -0.5), (3, -0.6)])
    beam.offer(2, [(4, -0.1)])
    children = beam.advance()
    assert {i: (c.parent, c.token) for i, c in children.items()} == {
        0: (1, 3),
        1: (1, 2),
        2: (2, 4),
    }


def test_withdrawn_offers_are_made_again() -> None:
    beam = make()
    beam.offer(0, [(5, -1.0), (6, -2.0)])
    beam.advance()
    assert not beam.offer(0, [(1, -1.0)])
    beam.withdraw_offers()
    assert not beam.offer(1, [(2, -1.0)])
    assert beam.offer(0, [(1, -1.0)])


@pytest.mark.parametrize(("num_stop_ids", "expected"), [(0, 6), (1, 6), (2, 9), (5, 18)])
def test_there_are_candidates_enough_for_all_beams_to_go_on(
    num_stop_ids: int, expected: int
) -> None:
    assert make(width=3, stop_ids=frozenset(range(num_stop_ids))).num_candidates == expected


def test_hypotheses_say_whether_a_stop_token_ended_them() -> None:
    beam = make(width=2, max_tokens=2, stop_ids=frozenset({9}))
    beam.offer(0, [(9, -1.0), (6, -2.0), (7, -3.0), (8, -4.0)])
    assert not beam.is_done
    for index in beam.advance():
        beam.offer(index, [(1, -0.5)])
    assert beam.advance() == {}
    assert beam.is_done
    assert {found.tokens: found.is_stopped for found in beam.finished} == {
        (9,): True,
        (6, 1): False,
    }


def test_a_hypothesis_keeps_what_was_likely_where_its_beams_went_through() -> None:
    beam = make(width=2, max_tokens=2)
    first = [(5, -1.0), (6, -2.0), (7, -3.0), (8, -4.0)]
    second = [(1, -0.1), (2, -0.2), (3, -0.3)]
    beam.offer(0, first, first[:2])
    beam.advance()
    beam.offer(0, [(4, -9.0)], [(4, -9.0)])
    beam.offer(1, second, second[:1])
    beam.advance()
    assert [found.tokens for found in beam.finished] == [(6, 1), (6, 2)]
    for found in beam.finished:
        assert found.alternatives == (first[:2], second[:1])


def test_a_met_pattern_ends_a_hypothesis_as_a_stop_token_does() -> None:
    # 5, whatever is silent, then 6; or 7 at once
    pattern = StopPattern(
        sources=int32([0, 1, 0]),
        tokens=int32([5, 6, 7]),
        targets=int32([1, PATTERN_MET, PATTERN_MET]),
        silent=int32([8]),
    )
    beam = BeamSearch(width=2, max_tokens=9, stop_ids=frozenset({9}), stop_pattern=pattern)
    beam.offer(0, [(5, -1.0), (7, -1.5), (6, -2.0), (4, -3.0)])
    assert {child.token for child in beam.advance().values()} == {5, 6}
    assert [how for how, _ in beam.just_ended] == [ENDED_BY_PATTERN]
    beam.offer(0, [(8, -0.1)])
    beam.offer(1, [(6, -0.2)])
    beam.advance()
    assert beam.just_ended == []
    beam.offer(0, [(6, -0.1), (9, -0.2)])
    beam.offer(1, [(6, -0.3)])
    beam.advance()
    assert beam.is_done
    assert {found.tokens: (found.is_stopped, found.is_matched) for found in beam.finished} == {
        (5, 8, 6): (False, True),
        (5, 8, 9): (True, False),
    }


def a_search(case: Case, pattern: StopPattern | None = None) -> BeamSearch:
    return BeamSearch(
        width=case.width,
        max_tokens=case.max_tokens,
        stop_ids=case.stop_ids,
        length_penalty=case.length_penalty,
        early_stopping=case.early_stopping,
        stop_pattern=pattern,
    )


def reported(steps: SearchSteps, search: BeamSearch, children: dict[int, Child]) -> None:
    """Add a step as the output has it."""
    rows = (*search.just_ended, *children.items())
    steps.counts.append(len(rows))
    for index, child in rows:
        steps.indices.append(index)
        steps.parents.append(child.parent)
        steps.tokens.append(child.token)
        steps.logprobs.append(child.logprob)
        tops = search.last_alternatives[child.parent]
        steps.top_counts.append(len(tops))
        steps.top_tokens.extend(token for token, _ in tops)
        steps.top_logprobs.extend(logprob for _, logprob in tops)


def offer_all(search: BeamSearch, prefixes: dict[int, int], model: SymbolicModel) -> None:
    for index, prefix in prefixes.items():
        candidates = model.candidates(prefix, search.num_candidates)
        search.offer(index, candidates, candidates[:2])


@pytest.mark.parametrize("has_pattern", [False, True])
def test_a_search_that_repeats_reported_steps_goes_on_as_the_one_that_made_them(
    has_pattern: bool,
) -> None:
    model = SymbolicModel(11)
    # 3 then 4 ends a hypothesis, too
    pattern = StopPattern(
        sources=int32([0, 1]), tokens=int32([3, 4]), targets=int32([1, PATTERN_MET]), silent=int32()
    )
    for early, penalty, seed in itertools.product(EARLY, PENALTIES, range(6)):
        case = Case(4, 7, frozenset({1, 4} - {4 * has_pattern}), penalty, early, seed)
        first = a_search(case, pattern if has_pattern else None)
        prefixes, steps, num_repeated = {0: extend_hash(EMPTY_PREFIX, seed)}, SearchSteps(), 0
        while not first.is_done:
            again = a_search(case, pattern if has_pattern else None)
            tokens = again.replay(steps)
            assert tokens.keys() == prefixes.keys()
            assert all(
                functools.reduce(extend_hash, tokens[index], extend_hash(EMPTY_PREFIX, seed))
                == prefix
                for index, prefix in prefixes.items()
            )
            num_repeated += bool(again.finished)
            for each in (first, again):
                offer_all(each, prefixes, model)
            children = first.advance()
            assert again.advance() == children
            assert again.finished == first.finished
            assert (again.is_done, again.just_ended) == (first.is_done, first.just_ended)
            prefixes = {
                index: extend_hash(prefixes[child.parent], child.token)
                for index, child in children.items()
            }
            reported(steps, first, children)
        assert num_repeated or not first.finished or early is True or len(steps.counts) < 3
