"""Sampled rows: each as if it were the only one, reported in columns."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.types import NONE_ALLOWED, FinishReason, SamplingParams
from engine.worker.batch import HostBatch, lay_out
from engine.worker.row_table import RowTable
from engine.worker.sampling.sampler import choose, look_up
from engine.worker.worker import Worker, load_worker
from kernels.batch import Sampled, SamplingColumns
from kernels.reference import ReferenceBackend
from kernels.runtime import HostRuntime
from kernels.sampling import BROKEN, NONE_LEFT
from tests.engine import rows
from tests.engine.model.tiny import VOCAB_SIZE, TinyModel
from tests.engine.whole.engine_run import Run
from tests.engine.worker.plans import GREEDY, Driver
from tests.fakes.worker_loader import POISON, BreakingModel, loader

_DRAWING = SamplingParams(max_tokens=1, temperature=1.3, seed=7)
_KINDS = (
    GREEDY,
    _DRAWING,
    replace(_DRAWING, seed=8),
    replace(_DRAWING, top_k=3),
    replace(_DRAWING, top_p=0.6, temperature=0.4),
    replace(_DRAWING, min_p=0.2),
    replace(_DRAWING, top_k=20, top_p=0.8, min_p=0.05, seed=(1 << 64) - 1),
)
_PROMPT = [3, 1, 4, 1, 5]


def _generate(driver: Driver, sampling: SamplingParams, num_tokens: int = 12) -> list[int]:
    row = driver.admit(_PROMPT, sampling)
    driver.prefill(row, 64)
    return driver.generate(row, num_tokens)


def _fresh(tiny: TinyModel) -> Worker:
    return load_worker(tiny.config(block_size=4))


def test_rows_with_different_parameters_equal_each_alone(tiny: TinyModel) -> None:
    together = Driver(_fresh(tiny))
    rows = [together.admit(_PROMPT, sampling) for sampling in _KINDS]
    together.run(rows, num_tokens=12, chunk=2)
    single = [_generate(Driver(_fresh(tiny)), sampling) for sampling in _KINDS]
    assert [row.output for row in rows] == single
    # so the kinds do differ
    assert len({tuple(output) for output in single}) == len(_KINDS)


@pytest.mark.parametrize("sampling", _KINDS)
def test_recomputed_row_draws_the_same_tokens(tiny: TinyModel, sampling: SamplingParams) -> None:
    driver = Driver(_fresh(tiny))
    expected = _generate(driver, sampling)
    again = driver.admit(_PROMPT + expected[:5], sampling)
    driver.prefill(again, 4)
    assert driver.generate(again, 7) == expected[5:]


def test_top_k_of_one_is_greedy(tiny: TinyModel) -> None:
    driver = Driver(_fresh(tiny))
    assert _generate(driver, replace(_DRAWING, top_k=1)) == _generate(driver, GREEDY)


def test_logprobs_are_reported_to_the_rows_that_asked(tiny: TinyModel) -> None:
    driver = Driver(_fresh(tiny))
    asked = (None, 0, 3, 5)
    rows = [driver.admit(_PROMPT, replace(_DRAWING, num_logprobs=count)) for count in asked]
    result = driver.step([], [(row, len(_PROMPT)) for row in rows])
    expected = tiny.logprobs(_PROMPT)[-1]
    assert list(result.top_counts) == [0, 0, 3, 5]
    assert math.isnan(result.logprobs[0])
    chosen = expected[list(result.tokens)]
    torch.testing.assert_close(torch.tensor(result.logprobs)[1:], chosen[1:], atol=1e-4, rtol=0)
    top = expected.topk(5)
    assert list(result.top_tokens) == top.indices[:3].tolist() + top.indices.tolist()
    reported = torch.tensor(result.top_logprobs)
    torch.testing.assert_close(reported, torch.cat((top.values[:3], top.values)), atol=1e-4, rtol=0)


@pytest.mark.parametrize("num_logprobs", [None, 0])
def test_columns_of_alternatives_are_empty_when_nobody_asked(
    tiny: TinyModel, num_logprobs: int | None
) -> None:
    driver = Driver(_fresh(tiny))
    row = driver.admit(_PROMPT, replace(GREEDY, num_logprobs=num_logprobs))
    (result,) = driver.prefill(row, 64)
    assert (len(result.top_counts), len(result.top_tokens), len(result.top_logprobs)) == (0, 0, 0)
    assert math.isnan(result.logprobs[0]) == (num_logprobs is None)


def test_more_alternatives_than_tokens_are_clipped_to_the_vocabulary(tiny: TinyModel) -> None:
    driver = Driver(_fresh(tiny))
    row = driver.admit(_PROMPT, replace(GREEDY, num_logprobs=VOCAB_SIZE + 5))
    (result,) = driver.prefill(row, 64)
    assert list(result.top_counts) == [VOCAB_SIZE]
    assert len(result.top_tokens) == VOCAB_SIZE


_BACKEND = ReferenceBackend(torch.device("cpu"), torch.float32)
_NAN, _INF = math.nan, math.inf


def _decoding(
    *kinds: dict[str, Any], known: tuple[int, ...] = (0, 1)
) -> tuple[RowTable, HostBatch]:
    """Rows with a prompt of `known` that decode, one of each kind, the last row first."""
    table = rows.make_table(len(kinds), vocab_size=6)
    table.admit(
        [
            rows.admission(row, known=known, length=len(known), **kind)
            for row, kind in enumerate(kinds)
        ]
    )
    plan = rows.make_plan(range(len(kinds))[::-1])
    return table, lay_out(plan, table, rows.BLOCK_SIZE)


def _sample(table: RowTable, batch: HostBatch, logits: Tensor) -> Sampled:
    return choose(_BACKEND, logits, batch.sampled, table)


def _choose(logits: list[list[float]], *kinds: dict[str, Any]) -> Sampled:
    """What rows of these kinds choose from logits, which are left as they are."""
    table, batch = _decoding(*kinds)
    given = torch.tensor(logits[::-1])
    before = given.clone()
    sampled = _sample(table, batch, given)
    torch.testing.assert_close(given, before, equal_nan=True, rtol=0, atol=0)
    return sampled


def _tokens(logits: list[list[float]], *kinds: dict[str, Any]) -> list[int]:
    return _choose(logits, *kinds).tokens.tolist()[::-1]


_SOUND = [0.0, 1.0, 5.0, 2.0, 3.0, 4.0]
# only the last two ids may be chosen, whose logits are sound below
_LIMITED = {"allowed_token_ids": (4, 5)}
_DRAWN = {"temperature": 0.8, "top_p": 0.9}


@pytest.mark.parametrize(
    "kind", [{}, _DRAWN, _LIMITED, _LIMITED | _DRAWN, {"logit_bias": ((5, 9.0),)}]
)
@pytest.mark.parametrize("broken", [_NAN, _INF])
def test_a_row_whose_logits_are_no_numbers_gets_no_token(
    kind: dict[str, Any], broken: float
) -> None:
    logits = [_SOUND, [0.0, broken, 5.0, 2.0, 3.0, 4.0], _SOUND, _SOUND]
    assert _tokens(logits, {}, kind, _LIMITED, {"logit_bias": ((1, 9.0),)}) == [2, -1, 5, 1]


def test_stop_ids_are_kept_back_for_tokens_of_the_output() -> None:
    """Of a row with a prompt of two tokens, which chooses its second token."""
    stops: dict[str, Any] = {"stop_token_ids": (5,)}
    kinds = [{"min_tokens": num, **stops} for num in (1, 2, 3)]
    chosen = _tokens([[0.0, 0.0, 0.0, 0.0, 1.0, 2.0]] * 3, *kinds)
    assert chosen == [5, 4, 4]


def test_a_row_that_may_choose_nothing_gets_no_token() -> None:
    nothing = {"allowed_token_ids": (1,), "min_tokens": 2, "stop_token_ids": (1,)}
    logits = [_SOUND, [-_INF] * 6, _SOUND, [_NAN] * 6]
    assert _tokens(logits, nothing, {}, {}, nothing) == [NONE_ALLOWED, -1, 2, -1]
    # graphs hand out what kernels have chosen
    assert (NONE_LEFT, BROKEN) == (NONE_ALLOWED, -1)


def test_a_broken_row_is_broken_in_a_search_too() -> None:
    search = {"beam_width": 2, "n": 2, "num_logprobs": 2}
    broken = [0.0, _NAN, 5.0, 2.0, 3.0, 4.0]
    assert _tokens([broken, _SOUND, broken], search, search, search | _LIMITED) == [-1, 2, -1]


@pytest.mark.parametrize("compiled_kernels", [False, True])
@pytest.mark.parametrize("value", [_NAN, _INF])
def test_the_engine_goes_on_after_broken_rows(
    tiny: TinyModel, value: float, compiled_kernels: bool
) -> None:
    plain = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
    limited = replace(plain, allowed_token_ids=tuple(range(100, 200)))
    kinds = (
        plain,
        limited,
        replace(plain, temperature=0.9, top_k=3),
        replace(limited, n=2, beam_width=2),
    )
    load = loader(HostRuntime(), lambda model: BreakingModel(model, value))
    engine = Run(tiny, load=load, max_num_seqs=16, compiled_kernels=compiled_kernels)
    for index, kind in enumerate(kinds):
        engine.add(index, [7, index, POISON], kind)
        engine.add(10 + index, [7, index, 8], plain)
    engine.drain()
    engine.add(20, [1, 2, 3], plain)
    engine.drain()
    assert {
        (reported.reason, *reported.tokens)
        for (request, _), reported in engine.reported.items()
        if request < 10
    } == {(FinishReason.ERROR,)}
    for index in range(len(kinds)):
        assert engine.reported[10 + index, 0].tokens == tiny.greedy([7, index, 8], 6)
    assert engine.reported[20, 0].tokens == tiny.greedy([1, 2, 3], 6)


def test_greedy_rows_stay_greedy_beside_rows_that_draw() -> None:
    hot = {"temperature": 100.0}
    drawn = {_tokens([_SOUND] * 3, {}, hot | {"seed": seed}, {})[1] for seed in range(20)}
    assert len(drawn) > 2
    assert _tokens([_SOUND] * 3, {}, hot, {})[::2] == [2, 2]


def test_filters_hold_for_the_rows_that_have_them() -> None:
    hot = {"temperature": 100.0}
    for seed in range(20):
        filtered, free = _tokens(
            [_SOUND] * 2, hot | {"top_k": 1, "seed": seed}, hot | {"seed": seed}
        )
        assert filtered == 2
        assert free == _tokens([_SOUND], hot | {"seed": seed})[0]


def test_rules_see_all_tokens_before_the_one_that_is_chosen() -> None:
    """A row has fed the tokens 0 and 1, and feeds 3 now; 2 is the most likely next one."""
    table, batch = _decoding({"bad_words": ((1, 3, 2),)})
    table.history.note(batch.token_rows, [2], torch.tensor([3]), [0])
    assert _sample(table, batch, torch.tensor([_SOUND])).tokens.tolist() == [5]
    # what the row of an earlier sequence has left behind it means nothing
    table, batch = _decoding({"bad_words": ((1, 3, 2),)})
    table.history.tokens[0, 3] = 3
    assert _sample(table, batch, torch.tensor([_SOUND])).tokens.tolist() == [2]


def test_log_probabilities_are_raw_but_candidates_of_a_search_follow_its_rules() -> None:
    raw = torch.tensor(_SOUND).log_softmax(0)
    wanted = {"num_logprobs": 2}
    search = {"beam_width": 1, **wanted}
    sampled = _choose([_SOUND] * 4, wanted, wanted | _LIMITED, search, search | _LIMITED)
    assert sampled.logprobs is not None
    assert sampled.top_tokens is not None
    assert sampled.top_logprobs is not None
    assert sampled.tokens.tolist()[::-1][:3] == [2, 5, 2]
    torch.testing.assert_close(sampled.logprobs.flip(0)[:3], raw[[2, 5, 2]])
    assert sampled.top_tokens.tolist()[::-1] == [[2, 5], [2, 5], [2, 5], [5, 4]]
    torch.testing.assert_close(sampled.top_logprobs[0], raw[[5, 4]])
    torch.testing.assert_close(sampled.top_logprobs[3], raw[[2, 5]])


def test_a_row_may_list_ids_of_its_own() -> None:
    raw = torch.tensor(_SOUND).log_softmax(0)
    own = {"num_logprobs": 3, "logprob_token_ids": (4, 0, 2)}
    few = {"num_logprobs": 1, "logprob_token_ids": (5,)}
    sampled = _choose([_SOUND] * 4, own, {"num_logprobs": 2}, few | _LIMITED, {})
    assert sampled.logprobs is not None
    assert sampled.top_tokens is not None
    assert sampled.top_logprobs is not None
    torch.testing.assert_close(sampled.logprobs.flip(0)[:3], raw[[2, 2, 5]])
    # in the order of the rows, each as many as it wants
    wanted = {0: [4, 0, 2], 1: [2, 5], 2: [5]}
    for row, ids in wanted.items():
        assert sampled.top_tokens[3 - row, : len(ids)].tolist() == ids
        torch.testing.assert_close(sampled.top_logprobs[3 - row, : len(ids)], raw[ids])


class _ShiftedBackend(ReferenceBackend):
    """Its log-probabilities are known by their values."""

    def sample(self, logits: Tensor, columns: SamplingColumns) -> Sampled:
        return self._shifted(super().sample(logits, columns))

    def report_logprobs(self, tokens: Tensor, logits: Tensor, num_logprobs: int) -> Sampled:
        return self._shifted(super().report_logprobs(tokens, logits, num_logprobs))

    def _shifted(self, sampled: Sampled) -> Sampled:
        for column in (sampled.logprobs, sampled.top_logprobs):
            if column is not None:
                column += 100
        return sampled


def test_the_company_of_a_ruled_row_changes_no_log_probability() -> None:
    """Backends sum in orders of their own, and a deterministic row must get the bits of one."""
    backend = _ShiftedBackend(torch.device("cpu"), torch.float32)
    wanted = {"num_logprobs": 2}
    sampled = []
    for company in ({}, _LIMITED):
        table, batch = _decoding(wanted, company)
        logits = torch.tensor([_SOUND] * 2)
        sampled.append(choose(backend, logits, batch.sampled, table).part(1, 2))
    plain, beside_ruled = sampled
    assert plain.logprobs is not None
    assert plain.logprobs.min() > 90
    for name in ("tokens", "logprobs", "top_tokens", "top_logprobs"):
        assert torch.equal(getattr(plain, name), getattr(beside_ruled, name)), name


def test_equal_candidates_of_a_ruled_search_are_ranked_by_their_numbers() -> None:
    """In a vocabulary of 6, and with the rules that leave four of them."""
    search = {"beam_width": 2, "num_logprobs": 2, "bad_words": ((0,), (3,))}
    sampled = _choose([[1.0] * 6] * 2, search, search)
    assert sampled.top_tokens is not None
    assert sampled.top_tokens.tolist() == [[1, 2]] * 2


def test_a_prompt_token_is_looked_up_behind_the_one_before_it() -> None:
    table = rows.make_table(2, vocab_size=6)
    table.admit(
        [
            rows.admission(0, known=(3, 1, 4), prompt_logprobs=1),
            rows.admission(1, known=(5, 2), prompt_logprobs=2),
        ]
    )
    chunks = [rows.Chunk(0, 0, (3, 1, 4)), rows.Chunk(1, 0, (5, 2))]
    batch = lay_out(rows.make_plan([], chunks), table, rows.BLOCK_SIZE)
    logits: Tensor = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    known = look_up(_BACKEND, logits, batch.prompt, table)
    assert known.tokens.tolist() == [1, 4, 2]
    raw = logits.log_softmax(1)
    torch.testing.assert_close(known.logprobs, raw[[0, 1, 2], [1, 4, 2]])
    assert known.top_tokens is not None
    assert known.top_tokens.tolist() == raw.topk(2).indices.tolist()
