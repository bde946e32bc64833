"""Sampling controls of rows that share a batch, are preempted, fork or search."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.core.scheduling.preemption import Preemption
from engine.types import FinishReason, SamplingParams
from tests.engine.model.tiny import VOCAB_SIZE, TinyModel
from tests.engine.whole.engine_run import RECOMPUTE, SWAP, SWAP_BYTES, Alternating, run, tokens_of

_NUM_TOKENS = 16
_GREEDY = SamplingParams(max_tokens=_NUM_TOKENS, temperature=0.0, num_logprobs=0)
_PROMPT = [17, 4, 17, 33, 4, 17, 90, 200]
_EOS = 5


_KINDS: tuple[dict[str, Any], ...] = (
    {"repetition_penalty": 1.4, "temperature": 0.8},
    {"presence_penalty": 1.5, "frequency_penalty": 0.5, "temperature": 1.2, "top_p": 0.9},
    {},
    {"logit_bias": ((3, 2.0), (8, -4.0)), "temperature": 1.0},
    {"allowed_token_ids": tuple(range(50)), "temperature": 2.0, "top_k": 20},
    {"bad_words": ((3,), (5, 6)), "temperature": 1.5},
    {"min_tokens": 6, "stop_token_ids": tuple(range(0, VOCAB_SIZE, 3)), "temperature": 1.0},
    {"frequency_penalty": 2.0, "repetition_penalty": 0.8, "min_tokens": 3},
)


def _kinds(**settings: Any) -> list[SamplingParams]:
    return [replace(_GREEDY, seed=index, **kind, **settings) for index, kind in enumerate(_KINDS)]


def test_rows_with_different_rules_equal_each_alone(tiny: TinyModel) -> None:
    prompts = [list(range(index, 3 * index + 5)) for index in range(len(_KINDS))]
    together = run(tiny, prompts, _kinds(), max_num_batched_tokens=16)
    for index, (prompt, kind) in enumerate(zip(prompts, _kinds(), strict=True)):
        single = run(tiny, [prompt], kind).reported[0, 0]
        assert together.reported[index, 0].tokens == single.tokens
        assert together.reported[index, 0].logprobs == pytest.approx(single.logprobs, abs=1e-5)


@pytest.mark.parametrize("kind", _kinds(n=3))
def test_forks_keep_their_own_counts(tiny: TinyModel, kind: SamplingParams) -> None:
    together = run(tiny, [_PROMPT], kind)
    for choice in range(3):
        single = run(tiny, [_PROMPT], replace(kind, n=1, seed=kind.seed + choice))
        assert together.reported[0, choice].tokens == single.reported[0, 0].tokens


@pytest.mark.in_turn
@pytest.mark.parametrize("run_ahead", [1, 2])
@pytest.mark.parametrize("preemption", [RECOMPUTE, SWAP, Alternating()])
def test_preempted_rows_keep_their_counts(
    tiny: TinyModel, preemption: Preemption, run_ahead: int
) -> None:
    prompts = [list(range(index, 2 * index + 9)) for index in range(len(_KINDS))]
    kinds = [replace(kind, n=1 + kind.seed % 2) for kind in _kinds()]
    calm = run(tiny, prompts, kinds, max_num_seqs=16, run_ahead=run_ahead)
    scarce: dict[str, Any] = {"num_blocks": 18, "block_size": 4, "max_model_len": 72}
    tight = run(
        tiny,
        prompts,
        kinds,
        max_num_seqs=16,
        preemption=preemption,
        run_ahead=run_ahead,
        swap_bytes=SWAP_BYTES,
        **scarce,
    )
    assert tokens_of(tight) == tokens_of(calm)
    assert sum(tight.num_preempted) > 0


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("controls", "processors"),
    [
        ({"min_tokens": 9}, {"min_new_tokens": 9}),
        ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
        ({"bad_words": ((8,), (9, 10))}, {"bad_words_ids": [[8], [9, 10]]}),
        (
            {"allowed_token_ids": tuple(range(60))},
            {"prefix_allowed_tokens_fn": lambda batch, ids: list(range(60))},
        ),
    ],
)
@pytest.mark.parametrize("num_blocks", [256, 30])
@pytest.mark.parametrize("preemption", [RECOMPUTE, SWAP])
def test_beams_follow_the_rules(
    tiny: TinyModel,
    controls: dict[str, Any],
    processors: dict[str, Any],
    num_blocks: int,
    preemption: Preemption,
) -> None:
    prompts = [_PROMPT, list(range(40, 53)), [9, 8, 7, 8, 9]]
    engine = run(
        tiny,
        prompts,
        SamplingParams(max_tokens=_NUM_TOKENS, beam_width=4, n=4, **controls),
        model=replace(tiny.config().model, eos_token_ids=(_EOS,)),
        num_blocks=num_blocks,
        block_size=4,
        max_model_len=120,
        max_num_seqs=16,
        preemption=preemption,
        swap_bytes=SWAP_BYTES,
    )
    assert (sum(engine.num_preempted) > 0) == (num_blocks == 30)
    for index, prompt in enumerate(prompts):
        output = tiny.reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            num_beams=4,
            num_return_sequences=4,
            max_new_tokens=_NUM_TOKENS,
            do_sample=False,
            eos_token_id=_EOS,
            pad_token_id=_EOS,
            **processors,
        )
        hypotheses = [row[len(prompt) :].tolist() for row in output]
        expected = [ids[: ids.index(_EOS) + 1] if _EOS in ids else ids for ids in hypotheses]
        assert [engine.reported[index, choice].tokens for choice in range(4)] == expected


def test_beams_that_find_too_few_tokens_end_with_what_there_is(tiny: TinyModel) -> None:
    sampling = SamplingParams(max_tokens=2, beam_width=4, n=4, allowed_token_ids=(7,))
    reported = run(tiny, [_PROMPT], sampling).reported
    assert reported[0, 0].tokens == [7, 7]
    assert [reported[0, choice].tokens for choice in (1, 2, 3)] == [[], [], []]
    assert all(reported[0, choice].reason is not FinishReason.NONE for choice in range(4))


@pytest.mark.parametrize("run_ahead", [1, 2])
def test_a_row_without_an_allowed_token_leaves_its_siblings_as_they_were(
    tiny: TinyModel, run_ahead: int
) -> None:
    # 3 may follow 3 or 8, and nothing may follow 8
    kind = replace(
        _GREEDY,
        temperature=3.0,
        n=6,
        seed=1,
        allowed_token_ids=(3, 8),
        bad_words=((8, 3), (8, 8)),
    )
    free = replace(kind, bad_words=())
    both = [run(tiny, [_PROMPT] * 2, [each, _GREEDY], run_ahead=run_ahead) for each in (kind, free)]
    ruled, calm = (engine.reported for engine in both)
    assert ruled[1, 0].tokens == calm[1, 0].tokens
    for choice in range(6):
        tokens, expected = ruled[0, choice].tokens, calm[0, choice].tokens
        ends = 8 in expected[:-1]
        assert tokens == (expected[: expected.index(8) + 1] if ends else expected)
        reason = FinishReason.RULED_OUT if ends else FinishReason.LENGTH
        assert ruled[0, choice].reason is reason
    assert {ruled[0, choice].reason for choice in range(6)} >= {FinishReason.RULED_OUT}
