"""Outputs that must match a grammar, in whole engines: what ends by itself is always complete."""

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher

from engine.core.scheduling.preemption import Preemption
from engine.types import FinishReason, SamplingParams
from tests.engine.model.tiny import TinyModel
from tests.engine.whole.engine_run import RECOMPUTE, SWAP, SWAP_BYTES, Run, run, tokens_of
from tests.engine.whole.grammars.tokens import END_ID, OTHER_END_ID, text_of, with_tokenizer
from tests.fakes.worker_loader import Replayer, loader

_SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": -5, "maximum": 120},
        "b": {"type": "array", "items": {"enum": ["x", "yy", None]}, "maxItems": 3},
        "c": {"type": "string", "maxLength": 4},
    },
    "required": ["a", "b", "c"],
    "additionalProperties": False,
}
_COMPACT: Any = {"whitespace_flexible": False}
_JSON = LLMatcher.grammar_from_json_schema(json.dumps(_SCHEMA), overrides=_COMPACT)
_DRAWING = SamplingParams(max_tokens=120, temperature=1.5, seed=3, grammar=_JSON)
_PROMPTS = [list(range(start, start + length)) for start, length in ((3, 5), (60, 16), (90, 23))]


@pytest.fixture(scope="module")
def spelling(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return with_tokenizer(tiny, tmp_path_factory.mktemp("spelling"))


def _run(model: TinyModel, samplings: Any, **settings: Any) -> Run:
    ends = replace(model.config().model, eos_token_ids=(END_ID,))
    return run(model, _PROMPTS, samplings, model=ends, **({"block_size": 4} | settings))


def _check(model: TinyModel, engine: Run, num_choices: int) -> None:
    assert len(engine.reported) == num_choices
    for reported in engine.reported.values():
        assert reported.reason is FinishReason.STOP
        jsonschema.validate(json.loads(text_of(model, reported.tokens)), _SCHEMA)


@pytest.mark.parametrize("run_ahead", [1, 2, 4])
def test_what_ends_by_itself_is_complete(spelling: TinyModel, run_ahead: int) -> None:
    engine = _run(spelling, replace(_DRAWING, n=3), run_ahead=run_ahead, max_num_seqs=12)
    _check(spelling, engine, 9)
    assert len({tuple(tokens) for tokens in tokens_of(engine).values()}) > 5


def test_greedy_and_ranked_choices_are_complete(spelling: TinyModel) -> None:
    greedy = replace(_DRAWING, temperature=0.0, num_logprobs=3)
    engine = _run(spelling, greedy)
    _check(spelling, engine, 3)
    # the distribution is the raw one: most likely are tokens that the grammar rules out
    assert all(
        reported.tops[0][0][0] != reported.tokens[0] for reported in engine.reported.values()
    )


def test_every_beam_is_complete(spelling: TinyModel) -> None:
    beams = replace(_DRAWING, beam_width=3, n=2)
    _check(spelling, _run(spelling, beams, max_num_seqs=12), 6)


def test_others_in_the_batch_do_not_notice(spelling: TinyModel) -> None:
    free = replace(_DRAWING, grammar=None, max_tokens=40, ignore_eos=True)
    penalised = replace(free, frequency_penalty=1.0)
    expected = [_run(spelling, kind).reported for kind in (free, penalised, _DRAWING)]
    mixed = _run(spelling, [free, penalised, _DRAWING]).reported
    for request, kind in enumerate(expected):
        assert mixed[request, 0].tokens == kind[request, 0].tokens


def test_rules_hold_beside_a_grammar(spelling: TinyModel) -> None:
    digits = LLMatcher.grammar_from_regex("[0-9]{30}")
    plain = replace(_DRAWING, grammar=digits)
    counts = []
    for sampling in (plain, replace(plain, frequency_penalty=2.0, presence_penalty=2.0)):
        text = text_of(spelling, _run(spelling, sampling).reported[0, 0].tokens)
        assert len(text) == 30
        assert text.isdigit()
        counts.append(len(set(text)))
    assert counts[0] < counts[1]


@pytest.mark.parametrize("preemption", [RECOMPUTE, SWAP])
@pytest.mark.parametrize("is_replayed", [False, True])
def test_preempted_rows_go_on_where_they_were(
    spelling: TinyModel, preemption: Preemption, is_replayed: bool
) -> None:
    sampling = replace(_DRAWING, grammar=LLMatcher.grammar_from_regex("([a-f]{3}-){10}[0-9]{2}"))
    tight = {"num_blocks": 24, "max_model_len": 96, "swap_bytes": SWAP_BYTES}
    runtime = Replayer()
    load = {"load": loader(runtime)} if is_replayed else {}
    engine = _run(spelling, sampling, preemption=preemption, **tight, **load)
    assert sum(engine.num_preempted) > 0
    assert tokens_of(engine) == tokens_of(_run(spelling, sampling))
    num_steps = len([plan for plan in engine.plans if plan.num_tokens])
    # one graph feeds, one chooses
    assert runtime.num_replays == (2 * num_steps if is_replayed else 0)


def test_stop_ids_end_only_what_is_complete(spelling: TinyModel) -> None:
    grammar = LLMatcher.grammar_from_regex("[ab]{8}c*")
    stopping = replace(_DRAWING, grammar=grammar, stop_token_ids=(OTHER_END_ID,))
    ends = set()
    for seed in range(12):
        for reported in _run(spelling, replace(stopping, seed=seed)).reported.values():
            assert reported.reason is FinishReason.STOP
            assert len(text_of(spelling, reported.tokens)) >= 8
            ends.add(reported.tokens[-1])
    assert ends == {END_ID, OTHER_END_ID}


def test_a_row_that_its_grammar_leaves_nothing_ends_by_its_rules(spelling: TinyModel) -> None:
    short = replace(_DRAWING, grammar=LLMatcher.grammar_from_regex("a"), min_tokens=5)
    free = replace(_DRAWING, grammar=None, max_tokens=20)
    engine = _run(spelling, [short, free, _DRAWING])
    assert engine.reported[0, 0].reason is FinishReason.RULED_OUT
    assert len(engine.reported[0, 0].tokens) == 1
    assert engine.reported[1, 0].reason is not FinishReason.RULED_OUT
    assert engine.reported[2, 0].reason is FinishReason.STOP


def test_a_grammar_that_cannot_be_read_ends_its_own_row(spelling: TinyModel) -> None:
    broken = replace(_DRAWING, grammar=LLMatcher.grammar_from_regex("(?=a)b"))
    engine = _run(spelling, [broken, _DRAWING, _DRAWING])
    assert engine.reported[0, 0].reason is FinishReason.RULED_OUT
    assert engine.reported[1, 0].reason is FinishReason.STOP
