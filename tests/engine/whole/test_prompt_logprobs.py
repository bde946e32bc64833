"""Log-probabilities of prompts, each position reported once, against transformers."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.core.scheduling.preemption import Preemption
from engine.types import PROMPT_CHOICE, SamplingParams
from tests.engine.model.tiny import TinyModel
from tests.engine.whole.engine_run import RECOMPUTE, SWAP, SWAP_BYTES, ChoiceReport, Run, run

_PROMPTS = [[11], [12, 13], list(range(60, 77)), list(range(100, 180, 2))]
_GREEDY = SamplingParams(max_tokens=5, temperature=0.0, prompt_logprobs=3)


def _check(reported: ChoiceReport, tiny: TinyModel, prompt: list[int], num_tops: int = 3) -> None:
    expected = tiny.logprobs(prompt)[:-1]
    following = torch.tensor(prompt[1:], dtype=torch.int64)
    assert reported.tokens == prompt[1:]
    chosen = expected.gather(1, following[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(reported.logprobs), chosen, atol=1e-4, rtol=0)
    top = expected.topk(num_tops) if num_tops else None
    for index, pairs in enumerate(reported.tops):
        assert [token for token, _ in pairs] == (top.indices[index].tolist() if top else [])
        if top:
            assert [logprob for _, logprob in pairs] == pytest.approx(
                top.values[index].tolist(), abs=1e-4
            )


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_every_prompt_position_is_told_once_whatever_the_chunks(
    tiny: TinyModel, chunk: int
) -> None:
    engine = run(tiny, _PROMPTS, _GREEDY, max_num_batched_tokens=chunk)
    for index, prompt in enumerate(_PROMPTS):
        _check(engine.reported[index, PROMPT_CHOICE], tiny, prompt)
        assert engine.reported[index, 0].tokens == tiny.greedy(prompt, 5)


@pytest.mark.parametrize("num_tops", [0, 1, 9])
def test_alternatives_are_as_many_as_asked(tiny: TinyModel, num_tops: int) -> None:
    kinds = [
        replace(_GREEDY, prompt_logprobs=num_tops),
        replace(_GREEDY, prompt_logprobs=None, num_logprobs=2),
        replace(_GREEDY, prompt_logprobs=5, num_logprobs=1),
        replace(_GREEDY, prompt_logprobs=None),
    ]
    engine = run(tiny, [_PROMPTS[2]] * 4, kinds, max_num_batched_tokens=16)
    _check(engine.reported[0, PROMPT_CHOICE], tiny, _PROMPTS[2], num_tops)
    _check(engine.reported[2, PROMPT_CHOICE], tiny, _PROMPTS[2], 5)
    assert {key for key in engine.reported if key[1] == PROMPT_CHOICE} == {
        (0, PROMPT_CHOICE),
        (2, PROMPT_CHOICE),
    }
    widths = [[len(pairs) for pairs in engine.reported[index, 0].tops] for index in range(4)]
    assert widths == [[0] * 5, [2] * 5, [1] * 5, [0] * 5]


@pytest.mark.in_turn
@pytest.mark.parametrize("chunk", [4, 7, 64])
@pytest.mark.parametrize("preemption", [RECOMPUTE, SWAP])
def test_a_preemption_tells_nothing_twice(
    tiny: TinyModel, preemption: Preemption, chunk: int
) -> None:
    prompts = [list(range(start, start + 25)) for start in (0, 30, 60, 90)]
    scarce: dict[str, Any] = {"num_blocks": 18, "block_size": 4, "max_model_len": 72}
    engine = run(
        tiny,
        prompts,
        replace(_GREEDY, max_tokens=20),
        max_num_batched_tokens=chunk,
        preemption=preemption,
        swap_bytes=SWAP_BYTES,
        **scarce,
    )
    assert sum(engine.num_preempted) > 0
    for index, prompt in enumerate(prompts):
        _check(engine.reported[index, PROMPT_CHOICE], tiny, prompt)
        assert engine.reported[index, 0].tokens == tiny.greedy(prompt, 20)


def test_a_prompt_preempted_between_its_chunks_is_told_once(tiny: TinyModel) -> None:
    """The later request is still being prefilled when the earlier one needs its blocks."""
    early, late = list(range(10)), list(range(100, 140))
    engine = Run(tiny, num_blocks=14, block_size=4, max_model_len=56, max_num_batched_tokens=3)
    engine.add(0, early, replace(_GREEDY, max_tokens=30, prompt_logprobs=None))
    for _ in range(8):
        engine.step()
    engine.add(1, late, replace(_GREEDY, max_tokens=2))
    engine.drain()
    assert engine.num_preempted[0] > 0
    fed = sum(len(plan.prefill_tokens) for plan in engine.plans)
    assert fed > len(early) + len(late)
    _check(engine.reported[1, PROMPT_CHOICE], tiny, late)


@pytest.mark.parametrize("n", [1, 3])
def test_the_cache_is_not_read(tiny: TinyModel, n: int) -> None:
    engine = Run(tiny, block_size=4)
    for request_id in range(2):
        engine.add(request_id, _PROMPTS[2], replace(_GREEDY, n=n))
        engine.drain()
        _check(engine.reported[request_id, PROMPT_CHOICE], tiny, _PROMPTS[2])
    assert engine.stats is not None
    assert engine.stats.num_cached_tokens == 0


def test_a_search_tells_its_prompt_too(tiny: TinyModel) -> None:
    sampling = SamplingParams(max_tokens=4, beam_width=2, n=2, prompt_logprobs=2)
    engine = run(tiny, [_PROMPTS[2]], sampling, max_num_batched_tokens=6)
    _check(engine.reported[0, PROMPT_CHOICE], tiny, _PROMPTS[2], 2)
    plain = run(tiny, [_PROMPTS[2]], replace(sampling, prompt_logprobs=None))
    assert [engine.reported[0, rank].tokens for rank in range(2)] == [
        plain.reported[0, rank].tokens for rank in range(2)
    ]


def test_an_aborted_request_tells_no_more_of_its_prompt(tiny: TinyModel) -> None:
    engine = Run(tiny, max_num_batched_tokens=4)
    engine.add(0, _PROMPTS[3], _GREEDY)
    for _ in range(3):
        engine.step()
    engine.abort(0)
    reported = len(engine.reported[0, PROMPT_CHOICE].tokens)
    engine.drain()
    assert 0 < reported == len(engine.reported[0, PROMPT_CHOICE].tokens) < len(_PROMPTS[3]) - 1
