"""Choices by masks that are replayed, on a CPU whose recordings are the work itself."""

from dataclasses import replace
from typing import Any

import pytest

from engine.types import FinishReason, SamplingParams
from engine.worker.graphs.graph_batch import GraphShape
from tests.engine.model.tiny import TinyModel
from tests.engine.whole.engine_run import SWAP, SWAP_BYTES, Run, run, tokens_of
from tests.fakes.worker_loader import POISON, BreakingModel, Replayer, loader

_GREEDY = SamplingParams(max_tokens=24, temperature=0.0)
_DRAWING = SamplingParams(max_tokens=17, temperature=1.2, seed=9)
_PROMPTS = [list(range(start, start + length)) for start, length in ((3, 5), (60, 16), (90, 23))]


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "special",
    [
        {"min_tokens": 3, "stop_token_ids": (7,)},
        {"allowed_token_ids": tuple(range(40, 90)), "temperature": 1.4, "top_k": 7, "seed": 3},
        {"bad_words": ((5,), (17,)), "n": 3, "temperature": 1.4},
    ],
)
@pytest.mark.parametrize("num_blocks", [256, 40])
def test_masks_are_chosen_by_in_a_graph(
    tiny: TinyModel, special: dict[str, Any], num_blocks: int, choices: list[GraphShape]
) -> None:
    """Steps with prompts, siblings and plain rows among them."""
    samplings = [_GREEDY, replace(_GREEDY, **special), replace(_DRAWING, top_k=9)]
    settings: dict[str, Any] = {
        "block_size": 4,
        "num_blocks": num_blocks,
        "max_model_len": 96,
        "swap_bytes": SWAP_BYTES,
        "preemption": SWAP,
        "max_num_seqs": 10,
    }
    runtime = Replayer()
    graphed = Run(tiny, load=loader(runtime), **settings)
    for index, (prompt, sampling) in enumerate(zip(_PROMPTS, samplings, strict=True)):
        graphed.add(index, prompt, sampling)
        graphed.step()
    graphed.drain()
    assert tokens_of(graphed) == tokens_of(run(tiny, _PROMPTS, samplings, **settings))
    num_steps = len([plan for plan in graphed.plans if plan.num_tokens])
    assert runtime.num_replays == num_steps + len(choices)
    assert any(shape.num_prompt_tokens for shape in choices)
    assert any(not shape.num_prompt_tokens for shape in choices)


def test_a_broken_row_behind_masks_ends_by_itself(
    tiny: TinyModel, choices: list[GraphShape]
) -> None:
    """Whether or not what is broken is left out, and beside one of which nothing is left."""
    masked = replace(_GREEDY, allowed_token_ids=tuple(range(40, 90)))
    nothing = replace(_GREEDY, allowed_token_ids=(9,), bad_words=((9,),))
    runtime = Replayer()
    engine = Run(tiny, load=loader(runtime, BreakingModel))
    for index, (prompt, sampling) in enumerate(
        [([1, 2, 3], masked), ([1, POISON], masked), ([4, 5], nothing), ([4, 5], _GREEDY)]
    ):
        engine.add(index, prompt, sampling)
    engine.drain()
    assert choices
    assert [engine.reported[index, 0].tokens for index in (1, 2)] == [[], []]
    reasons = [engine.reported[index, 0].reason for index in range(4)]
    assert reasons[1:3] == [FinishReason.ERROR, FinishReason.RULED_OUT]
    assert engine.reported[3, 0].tokens == tiny.greedy([4, 5], 24)
    assert set(engine.reported[0, 0].tokens) <= set(range(40, 90))
