"""Requests that lose their engine on the real worker: the same ids, to the end of every choice."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from llguidance import LLMatcher

from engine.core.engine import Engine
from engine.core.scheduling.preemption import FixedPreemption
from engine.executor.inline import InlineExecutor
from engine.types import SamplingParams, int32
from engine.worker.worker import load_worker
from tests.engine.core.harness.losing_engine import LosingEngine
from tests.engine.model.tiny import TinyModel
from tests.engine.whole.grammars.tokens import END_ID, with_tokenizer

_GREEDY = SamplingParams(max_tokens=14, temperature=0.0, ignore_eos=True)
_DRAWING = SamplingParams(max_tokens=14, temperature=1.2, seed=5, ignore_eos=True)
_GRAMMAR = LLMatcher.grammar_from_regex("([a-f]{3}-){2}[0-9]{2}")
_KINDS = {
    "greedy": _GREEDY,
    "seeded": replace(_DRAWING, num_logprobs=2),
    "three": replace(_DRAWING, n=3, num_logprobs=0),
    "filtered": replace(_DRAWING, n=2, top_k=9, top_p=0.8, min_p=0.01),
    "penalised": replace(
        _DRAWING, n=2, presence_penalty=1.5, frequency_penalty=0.7, repetition_penalty=1.3
    ),
    "late stop": replace(
        _DRAWING, n=3, ignore_eos=False, stop_token_ids=tuple(range(0, 300, 3)), min_tokens=6
    ),
    "ruled": replace(
        _DRAWING, n=2, bad_words=tuple((a, b) for a in range(40) for b in range(40, 43)),
        allowed_token_ids=tuple(range(60)), logit_bias=((7, 3.0), (9, -2.0)),
    ),
    "grammar": replace(_DRAWING, n=2, ignore_eos=False, grammar=_GRAMMAR, num_logprobs=1),
    "grammar search": replace(
        _GREEDY, beam_width=3, n=2, ignore_eos=False, report_beams=True, grammar=_GRAMMAR,
    ),
    "scored": replace(_DRAWING, prompt_logprobs=2, num_logprobs=1),
    "deterministic": replace(_DRAWING, n=2, deterministic=True, num_logprobs=1),
    "search": replace(_GREEDY, beam_width=3, n=2, num_logprobs=1, length_penalty=0.7),
    "reported": replace(
        _GREEDY, beam_width=3, n=3, num_logprobs=2, report_beams=True, early_stopping="never",
        ignore_eos=False, stop_token_ids=tuple(range(0, 300, 7)),
    ),
}  # fmt: skip
_PROMPTS = [list(range(start, start + length)) for start, length in ((3, 5), (60, 16), (90, 23))]


@pytest.fixture(scope="module")
def runs(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> "Runs":
    return Runs(with_tokenizer(tiny, tmp_path_factory.mktemp("spelling")))


class Runs:
    """Engines over workers of one model; each loss begins a new worker."""

    def __init__(self, tiny: TinyModel) -> None:
        self._tiny = tiny

    def run(
        self, samplings: list[SamplingParams], moments: list[int], **options: Any
    ) -> LosingEngine:
        settings = {"block_size": 4, "max_num_batched_tokens": 24, "max_num_seqs": 12} | options
        model = replace(self._tiny.config().model, eos_token_ids=(END_ID,))
        config = self._tiny.config(model=model, **settings)

        def make(_: set[int]) -> Engine:
            executor = InlineExecutor(load_worker(config), 2)
            return Engine(config.scheduler, executor, preemption=FixedPreemption(swap=False))

        engine = LosingEngine(make)
        for index, sampling in enumerate(samplings):
            engine.add(int32(_PROMPTS[index % len(_PROMPTS)]), sampling)
        while engine.has_work:
            if engine.num_steps in moments:
                engine.lose(Random(engine.num_steps))
            engine.step()
        engine.drain()
        return engine


def assert_equal(lost: LosingEngine, undisturbed: LosingEngine) -> None:
    for key, right in undisturbed.got.items():
        got = lost.got[key]
        assert (got.tokens, got.reason) == (right.tokens, right.reason), key
        assert got.logprobs == pytest.approx(right.logprobs, abs=1e-4, nan_ok=True)
        assert len(got.tops) == len(right.tops)
        for tops, expected in zip(got.tops, right.tops, strict=True):
            assert [token for token, _ in tops] == [token for token, _ in expected]
        assert [[row[:3] for row in step] for step in got.steps] == [
            [row[:3] for row in step] for step in right.steps
        ]


@pytest.mark.parametrize("kind", _KINDS)
def test_every_kind_of_request_goes_on_as_if_nothing_had_happened(runs: Runs, kind: str) -> None:
    samplings = [_KINDS[kind]] * 2
    undisturbed = runs.run(samplings, [])
    assert_equal(runs.run(samplings, [3, 9]), undisturbed)


def test_all_kinds_together_go_on_through_two_losses_and_preemptions(runs: Runs) -> None:
    samplings = list(_KINDS.values())
    options = {"max_num_seqs": 32, "max_model_len": 64}
    undisturbed = runs.run(samplings, [], **options)
    lost = runs.run(samplings, [7, 20], num_blocks=26, **options)
    assert_equal(lost, undisturbed)
    assert {"several choices", "beams", "alternatives of beams"} <= lost.resumed.keys()
    assert lost.stats is not None
    assert lost.stats.num_recomputed
