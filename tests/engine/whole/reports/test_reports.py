"""Faults that users of other engines have reported, tried on this one: see docs/reports.md."""

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from engine.core.scheduling.preemption import Preemption
from engine.types import PROMPT_CHOICE, FinishReason, SamplingParams
from tests.engine.model.tiny import TinyModel
from tests.engine.whole.engine_run import RECOMPUTE, SWAP, SWAP_BYTES, Run, run, tokens_of

_GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)


@pytest.mark.parametrize("beams", [False, True])
@pytest.mark.parametrize("prompt_len", [15, 16, 17])
def test_four_sequences_in_a_pool_that_they_just_fill_free_it_once(
    tiny: TinyModel, prompt_len: int, beams: bool
) -> None:
    prompt = list(range(40, 40 + prompt_len))
    kinds: dict[str, Any] = {"beam_width": 4} if beams else {"temperature": 1.0, "seed": 3}
    sampling = replace(_GREEDY, n=4, max_tokens=9, **kinds)
    roomy = run(tiny, [prompt], sampling, block_size=8, num_blocks=40, max_model_len=32)
    # two blocks of the prompt, and for each sequence two or three of its own
    tight = run(tiny, [prompt, prompt[1:]], sampling, block_size=8, num_blocks=14, max_model_len=32)
    assert [tokens_of(tight)[0, choice] for choice in range(4)] == [
        tokens_of(roomy)[0, choice] for choice in range(4)
    ]


@pytest.mark.parametrize("swap_bytes", [0, 1 << 14])
def test_a_swap_space_that_holds_no_group_costs_no_request(
    tiny: TinyModel, swap_bytes: int
) -> None:
    sampling = replace(_GREEDY, n=4, temperature=1.0, seed=5, max_tokens=20)
    prompts = [list(range(30 + index, 42 + index)) for index in range(4)]
    settings: dict[str, Any] = {"block_size": 4, "max_model_len": 48}
    swapping: dict[str, Any] = {"preemption": SWAP, "swap_bytes": swap_bytes}
    tight = run(tiny, prompts, sampling, num_blocks=30, **settings, **swapping)
    assert sum(tight.num_preempted) > 0
    assert tokens_of(tight) == tokens_of(run(tiny, prompts, sampling, num_blocks=200, **settings))


@pytest.mark.parametrize("preemption", [RECOMPUTE, SWAP])
def test_many_requests_end_in_a_small_pool_and_few_are_preempted(
    tiny: TinyModel, preemption: Preemption
) -> None:
    prompts = [list(range(20 + index, 30 + index)) for index in range(24)]
    settings: dict[str, Any] = {"block_size": 4, "max_model_len": 24}
    preempting: dict[str, Any] = {"preemption": preemption, "swap_bytes": SWAP_BYTES}
    sampling = replace(_GREEDY, max_tokens=12)
    small = run(tiny, prompts, sampling, num_blocks=12, **settings, **preempting)
    assert {len(report.tokens) for report in small.reported.values()} == {12}
    assert tokens_of(small) == tokens_of(run(tiny, prompts, sampling, num_blocks=400, **settings))
    assert sum(small.num_preempted) <= 3 * len(prompts)


@pytest.mark.parametrize("prompt_len", [31, 32, 33, 64])
def test_the_likeliest_tokens_of_a_scored_answer_are_the_greedy_ones(
    tiny: TinyModel, prompt_len: int
) -> None:
    prompt = list(range(50, 50 + prompt_len))
    [answer] = tokens_of(run(tiny, [prompt], replace(_GREEDY, max_tokens=48))).values()
    scores = replace(_GREEDY, max_tokens=1, prompt_logprobs=1)
    scored = run(tiny, [[*prompt, *answer]], scores, max_num_batched_tokens=32)
    tops = scored.reported[0, PROMPT_CHOICE].tops[prompt_len - 1 :]
    assert [best for [(best, _)] in tops] == answer


def test_every_end_is_passed_over_where_ends_are_ignored(tiny: TinyModel) -> None:
    prompt = list(range(60, 70))
    [plain] = tokens_of(run(tiny, [prompt], _GREEDY)).values()
    ends = (plain[2], plain[4])
    ignored = run(tiny, [prompt], _GREEDY, eos_token_ids=ends)
    assert tokens_of(ignored)[0, 0] == plain
    assert ignored.reported[0, 0].reason is FinishReason.LENGTH
    obeyed = run(tiny, [prompt], replace(_GREEDY, ignore_eos=False), eos_token_ids=ends)
    assert obeyed.reported[0, 0].reason is FinishReason.STOP
    assert tokens_of(obeyed)[0, 0] == plain[: plain.index(next(t for t in plain if t in ends)) + 1]


def test_steps_of_changing_shapes_keep_no_memory(tiny: TinyModel) -> None:
    engine = Run(tiny, block_size=4, num_blocks=60, max_model_len=64)

    def some_requests(start: int) -> None:
        for index in range(start, start + 15):
            prompt = list(range(10 + index % 23, 14 + index % 41))
            engine.add(index, prompt or [1], replace(_GREEDY, max_tokens=1 + index % 7))
        engine.drain()
        engine.plans.clear()
        engine.reported.clear()

    some_requests(0)
    tracemalloc.start()
    try:
        some_requests(100)
        before, _ = tracemalloc.get_traced_memory()
        for start in range(200, 500, 100):
            some_requests(start)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # what Python rounds up; a kept plan or result has a kilobyte or more for each of 150 steps
    assert after - before < 64 << 10
