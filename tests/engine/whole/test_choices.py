"""Several choices per prompt, shared prefixes and preemptions through the whole engine."""

from dataclasses import replace
from typing import Any

import pytest

from engine.core.scheduling.preemption import Preemption
from engine.types import SamplingParams
from tests.engine.model.tiny import TinyModel
from tests.engine.whole.engine_run import (
    RECOMPUTE,
    SWAP,
    SWAP_BYTES,
    Alternating,
    Run,
    run,
    tokens_of,
)

_DRAWING = SamplingParams(max_tokens=16, temperature=1.1, seed=21, num_logprobs=2)
_PROMPTS = [list(range(start, start + length)) for start, length in ((3, 5), (60, 16), (90, 23))]


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_each_choice_is_what_its_seed_gives_alone(tiny: TinyModel, block_size: int) -> None:
    settings: dict[str, Any] = {"block_size": block_size, "max_num_seqs": 16}
    together = run(tiny, _PROMPTS, replace(_DRAWING, n=4), **settings)
    for choice in range(4):
        single = run(tiny, _PROMPTS, replace(_DRAWING, seed=21 + choice), **settings)
        for index in range(len(_PROMPTS)):
            assert together.reported[index, choice].tokens == single.reported[index, 0].tokens
            assert together.reported[index, choice].logprobs == pytest.approx(
                single.reported[index, 0].logprobs, abs=1e-5
            )
    assert len({tuple(tokens) for tokens in tokens_of(together).values()}) == 12


def test_a_prompt_is_prefilled_once_for_all_choices(tiny: TinyModel) -> None:
    engine = run(tiny, [_PROMPTS[2]], replace(_DRAWING, n=4), max_num_batched_tokens=10)
    assert sum(len(plan.prefill_tokens) for plan in engine.plans) == len(_PROMPTS[2])
    # the first token of each choice comes from the prefill's logits
    assert sum(len(plan.decode_rows) for plan in engine.plans) == 4 * (_DRAWING.max_tokens - 1)


@pytest.mark.in_turn
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("prompt_len", [1, 7, 8, 9, 15, 16, 17, 24])
def test_a_prompt_found_in_the_cache_gives_the_same_tokens(
    tiny: TinyModel, prompt_len: int, n: int
) -> None:
    prompt = list(range(30, 30 + prompt_len))
    sampling = replace(_DRAWING, n=n)
    engine = Run(tiny, block_size=8)
    for request_id in range(2):
        engine.add(request_id, prompt, sampling)
        engine.drain()
    for choice in range(n):
        first, second = engine.reported[0, choice], engine.reported[1, choice]
        assert first.tokens == second.tokens
        assert first.logprobs == pytest.approx(second.logprobs, abs=1e-5)
    assert engine.stats is not None
    # at least the last token is computed
    assert engine.stats.num_cached_tokens == (prompt_len - 1) // 8 * 8


@pytest.mark.parametrize("run_ahead", [1, 2])
def test_generated_text_that_comes_back_is_found(tiny: TinyModel, run_ahead: int) -> None:
    engine = Run(tiny, block_size=4, run_ahead=run_ahead)
    engine.add(0, _PROMPTS[0], replace(_DRAWING, n=2))
    engine.drain()
    num_found = 0
    for choice in range(2):
        longer = _PROMPTS[0] + engine.reported[0, choice].tokens
        engine.add(1 + choice, longer, _DRAWING)
        engine.drain()
        single = run(tiny, [longer], _DRAWING, block_size=4)
        assert engine.reported[1 + choice, 0].tokens == single.reported[0, 0].tokens
        # neither the last token of an answer nor that of a prompt is there
        num_found += (len(longer) - 1) // 4 * 4
    assert engine.stats is not None
    assert engine.stats.num_cached_tokens == num_found


@pytest.mark.in_turn
@pytest.mark.parametrize("run_ahead", [1, 2])
@pytest.mark.parametrize(
    ("preemption", "recomputes", "swaps"),
    # groups hold no more swap blocks than the pool has blocks: some are recomputed
    [(RECOMPUTE, True, False), (SWAP, True, True), (Alternating(), True, True)],
)
def test_preempted_choices_go_on_as_before(
    tiny: TinyModel, preemption: Preemption, recomputes: bool, swaps: bool, run_ahead: int
) -> None:
    prompts = _PROMPTS * 2
    kinds = [replace(_DRAWING, n=1 + index % 3, seed=index) for index in range(len(prompts))]
    calm = run(tiny, prompts, kinds, max_num_seqs=32, run_ahead=run_ahead)
    scarce: dict[str, Any] = {"num_blocks": 26, "block_size": 4, "max_model_len": 104}
    tight = run(
        tiny,
        prompts,
        kinds,
        max_num_seqs=32,
        run_ahead=run_ahead,
        preemption=preemption,
        swap_bytes=SWAP_BYTES,
        **scarce,
    )
    assert tokens_of(tight) == tokens_of(calm)
    assert [count > 0 for count in tight.num_preempted] == [recomputes, swaps]
    assert calm.num_preempted == (0, 0)


def test_a_fork_leaves_its_parent_alone(tiny: TinyModel) -> None:
    """Choices that write into the same last block copy it first."""
    prompt = _PROMPTS[0]
    engine = run(tiny, [prompt], replace(_DRAWING, n=3), block_size=16)
    assert sum(len(plan.copy_sources) for plan in engine.plans) == 2
    single = run(tiny, [prompt], _DRAWING, block_size=16)
    assert engine.reported[0, 0].tokens == single.reported[0, 0].tokens
