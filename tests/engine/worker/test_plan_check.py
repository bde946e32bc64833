"""Plans that would reach beyond a tensor."""

from array import array
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import InvariantViolated
from engine.types import KEY_WORDS, RowAdmission, SamplingParams, StepPlan, int32, int64
from engine.worker.plan_check import PlanLimits, check_plan


def _columns(values: dict[str, int], *, twice: bool = False) -> dict[str, Any]:
    count = 2 if twice else 1
    columns = {name: int32([value] * count) for name, value in values.items()}
    for way in ("swap_out", "swap_in"):
        if any(name.startswith(way) for name in values):
            columns[f"{way}_keys"] = int64([0] * KEY_WORDS * count)
    return columns


_LIMITS = PlanLimits(
    num_rows=4, num_blocks=10, num_swap_blocks=6, max_blocks=3, num_positions=12, vocab_size=50
)
_SOUND = StepPlan(
    step=7,
    releases=int32([3]),
    admissions=[RowAdmission(row=3, sampling=SamplingParams(max_tokens=1))],
    append_rows=int32([3]),
    append_indices=int32([2]),
    append_blocks=int32([9]),
    copy_sources=int32([9]),
    copy_destinations=int32([0]),
    decode_rows=int32([0]),
    prefill_rows=int32([3]),
    prefill_starts=int32([10]),
    prefill_counts=int32([2]),
    prefill_samples=array("b", [1]),
    prefill_tokens=int32([0, 49]),
)


def test_largest_ids_pass() -> None:
    check_plan(_SOUND, _LIMITS)


def test_a_chunk_of_one_token_and_as_many_known_ones_as_there_are_positions_pass() -> None:
    one = replace(_SOUND, prefill_counts=int32([1]), prefill_tokens=int32([7]))
    check_plan(one, _LIMITS)
    known = RowAdmission(row=3, sampling=SamplingParams(max_tokens=1), known_tokens=int32([0] * 12))
    check_plan(replace(_SOUND, admissions=[known]), _LIMITS)


@pytest.mark.parametrize(
    ("column", "limit"),
    [
        ("releases", 4),
        ("append_rows", 4),
        ("append_indices", 3),
        ("append_blocks", 10),
        ("copy_sources", 10),
        ("copy_destinations", 10),
        ("decode_rows", 4),
        ("prefill_rows", 4),
        ("prefill_starts", 12),
    ],
)
def test_ids_out_of_range_are_named(column: str, limit: int) -> None:
    for value in (-1, limit):
        broken: dict[str, Any] = {column: int32([value])}
        with pytest.raises(InvariantViolated, match=f"step 7.*{column}.*{value}"):
            check_plan(replace(_SOUND, **broken), _LIMITS)


@pytest.mark.parametrize(
    "twice",
    [
        {"releases": int32([3, 3])},
        {"admissions": _SOUND.admissions * 2},
        {"append_rows": int32([3, 3]), "append_indices": int32([2, 2])},
        {"token_rows": int32([1, 1]), "token_values": int32([7, 8])},
        {"fork_parents": int32([0, 1]), "fork_children": int32([2, 2])},
        _columns({"swap_out_sources": 4, "swap_out_destinations": 1}, twice=True),
        _columns({"swap_in_sources": 0, "swap_in_destinations": 6}, twice=True),
        {"copy_sources": int32([8, 9]), "copy_destinations": int32([0, 0])},
    ],
)
def test_what_would_be_written_twice_is_refused(twice: dict[str, Any]) -> None:
    plan = replace(_SOUND, append_blocks=int32([8, 9])) if "append_rows" in twice else _SOUND
    with pytest.raises(InvariantViolated, match=r"step 7.*twice"):
        check_plan(replace(plan, **twice), _LIMITS)


@pytest.mark.parametrize("token", [-1, 50])
def test_tokens_out_of_the_vocabulary_are_refused(token: int) -> None:
    with pytest.raises(InvariantViolated, match="prefill_tokens"):
        check_plan(replace(_SOUND, prefill_tokens=int32([0, token])), _LIMITS)


@pytest.mark.parametrize("row", [-1, 4])
def test_admitted_rows_out_of_range_are_refused(row: int) -> None:
    admission = RowAdmission(row=row, sampling=SamplingParams(max_tokens=1))
    with pytest.raises(InvariantViolated, match="admissions"):
        check_plan(replace(_SOUND, admissions=[admission]), _LIMITS)


@pytest.mark.parametrize(
    "broken",
    [
        {"append_blocks": int32()},
        {"copy_sources": int32()},
        {"prefill_starts": int32()},
        {"prefill_counts": int32([1])},
        {"prefill_counts": int32()},
        {"prefill_samples": array("b")},
        {"prefill_tokens": int32([1, 2, 3])},
        {"decode_rows": int32([3])},
        {"decode_rows": int32([0, 0])},
    ],
)
def test_columns_that_do_not_match_are_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(InvariantViolated, match="columns differ in length, or a row comes twice"):
        check_plan(replace(_SOUND, **broken), _LIMITS)


@pytest.mark.parametrize(("start", "count"), [(11, 2), (0, 0), (3, -1)])
def test_chunks_out_of_the_context_are_refused(start: int, count: int) -> None:
    chunk: dict[str, Any] = {
        "prefill_starts": int32([start]),
        "prefill_counts": int32([count]),
        "prefill_tokens": int32([0] * count),
    }
    with pytest.raises(InvariantViolated, match="step 7"):
        check_plan(replace(_SOUND, **chunk), _LIMITS)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("fork_parents", "fork_children"),
        ("token_rows", "token_values"),
        ("swap_out_sources", "swap_out_destinations"),
        ("swap_in_sources", "swap_in_destinations"),
        ("sibling_rows", "sibling_parents"),
    ],
)
def test_pairs_out_of_range_or_of_different_length_are_refused(first: str, second: str) -> None:
    limits = {"token_values": 50, "swap_out_sources": 10, "swap_in_destinations": 10}
    limits |= {"swap_out_destinations": 6, "swap_in_sources": 6}
    check_plan(replace(_SOUND, **_columns({first: 1, second: 2})), _LIMITS)
    for name in (first, second):
        for value in (-1, limits.get(name, 4)):
            with pytest.raises(InvariantViolated, match=f"{name}.*{value}"):
                check_plan(replace(_SOUND, **_columns({first: 1, second: 2, name: value})), _LIMITS)
        with pytest.raises(InvariantViolated, match="columns differ in length"):
            check_plan(replace(_SOUND, **_columns({name: 1})), _LIMITS)


@pytest.mark.parametrize("way", ["swap_out", "swap_in"])
def test_every_swapped_block_has_a_key(way: str) -> None:
    columns = _columns({f"{way}_sources": 1, f"{way}_destinations": 2})
    columns[f"{way}_keys"].pop()
    with pytest.raises(InvariantViolated, match="columns differ in length"):
        check_plan(replace(_SOUND, **columns), _LIMITS)


def test_a_row_that_decodes_and_is_born_at_once_is_refused() -> None:
    born = _columns({"sibling_rows": 0, "sibling_parents": 3})
    with pytest.raises(InvariantViolated, match="a row comes twice"):
        check_plan(replace(_SOUND, **born), _LIMITS)


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("logit_bias", {"logit_bias": ((50, 1.0),)}),
        ("allowed_token_ids", {"allowed_token_ids": (-1,)}),
        ("bad_words", {"bad_words": ((3, 4), (1 << 40,))}),
    ],
)
def test_rules_about_unknown_tokens_are_refused(name: str, rules: dict[str, Any]) -> None:
    admission = RowAdmission(row=3, sampling=SamplingParams(max_tokens=1, **rules))
    with pytest.raises(InvariantViolated, match=name):
        check_plan(replace(_SOUND, admissions=[admission]), _LIMITS)


@pytest.mark.parametrize("known", [[50], [-1], [0] * 13])
def test_known_tokens_beyond_the_vocabulary_or_the_context_are_refused(known: list[int]) -> None:
    admission = RowAdmission(
        row=3, sampling=SamplingParams(max_tokens=1), known_tokens=int32(known)
    )
    with pytest.raises(InvariantViolated, match=r"known.tokens"):
        check_plan(replace(_SOUND, admissions=[admission]), _LIMITS)
