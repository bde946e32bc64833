"""Beam search through the whole engine against transformers."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from engine.types import SamplingParams
from tests.engine.model.tiny import TinyModel, save_tiny
from tests.engine.whole.engine_run import (
    RECOMPUTE,
    SWAP,
    SWAP_BYTES,
    Alternating,
    Run,
    run,
    tokens_of,
)

_EOS = 5
_PROMPTS = [
    list(range(start, start + length)) for start, length in ((10, 3), (40, 16), (80, 17), (7, 9))
]
_NUM_TOKENS = 20


def _search(width: int, **settings: Any) -> SamplingParams:
    return SamplingParams(max_tokens=_NUM_TOKENS, beam_width=width, n=width, **settings)


def _settings(tiny: TinyModel, block_size: int, num_blocks: int, **settings: Any) -> dict[str, Any]:
    model = replace(tiny.config().model, eos_token_ids=(_EOS,))
    return {
        "model": model,
        "block_size": block_size,
        "num_blocks": num_blocks,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 64,
        "max_model_len": min(256, block_size * num_blocks),
        **settings,
    }


# many tests search for the same
@lru_cache(maxsize=256)
@torch.inference_mode()
def _expected(
    tiny: TinyModel, prompt: tuple[int, ...], width: int, **settings: Any
) -> tuple[list[list[int]], list[float]]:
    """Hypotheses of transformers, best first, each up to its end, and their scores."""
    output = tiny.reference.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        num_beams=width,
        num_return_sequences=width,
        max_new_tokens=_NUM_TOKENS,
        do_sample=False,
        eos_token_id=_EOS,
        pad_token_id=_EOS,
        return_dict_in_generate=True,
        output_scores=True,
        **settings,
    )
    hypotheses = [row[len(prompt) :].tolist() for row in output.sequences]
    trimmed = [ids[: ids.index(_EOS) + 1] if _EOS in ids else ids for ids in hypotheses]
    scores = output.sequences_scores.tolist() if width > 1 else []
    return trimmed, scores


def _check(engine: Run, tiny: TinyModel, width: int, length_penalty: float, **more: Any) -> None:
    for index, prompt in enumerate(_PROMPTS):
        ids, scores = _expected(tiny, tuple(prompt), width, length_penalty=length_penalty, **more)
        reported = [engine.reported[index, choice] for choice in range(width)]
        assert [hypothesis.tokens for hypothesis in reported] == ids
        if width > 1:
            own = [sum(t.logprobs) / len(t.tokens) ** length_penalty for t in reported]
            assert own == pytest.approx(scores, abs=1e-3)


@pytest.mark.in_turn
@pytest.mark.parametrize("length_penalty", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("early_stopping", [True, False])
@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_hypotheses_equal_those_of_transformers(
    tiny: TinyModel, width: int, early_stopping: bool, length_penalty: float
) -> None:
    sampling = _search(width, early_stopping=early_stopping, length_penalty=length_penalty)
    engine = run(tiny, _PROMPTS, sampling, **_settings(tiny, 16, 128))
    _check(engine, tiny, width, length_penalty, early_stopping=early_stopping)
    assert engine.num_preempted == (0, 0)


@pytest.mark.parametrize("name", ["opt", "opt_norms_last", "gpt2", "qwen3", "gemma2", "qwen3_moe"])
def test_other_families_search_alike(name: str, tmp_path: Path) -> None:
    model = save_tiny(name, tmp_path)
    engine = run(model, _PROMPTS, _search(4), **_settings(model, 4, 256))
    _check(engine, model, 4, 1.0)


@pytest.mark.in_turn
@pytest.mark.parametrize("mode", ["recompute", "swap", "mixed"])
@pytest.mark.parametrize(("block_size", "num_blocks"), [(1, 104), (4, 30), (16, 13), (64, 8)])
def test_preempted_searches_end_as_quiet_ones(
    tiny: TinyModel, mode: Literal["recompute", "swap", "mixed"], block_size: int, num_blocks: int
) -> None:
    preemption = {"recompute": RECOMPUTE, "swap": SWAP, "mixed": Alternating()}[mode]
    scarce = _settings(tiny, block_size, num_blocks, preemption=preemption, swap_bytes=SWAP_BYTES)
    engine = run(tiny, _PROMPTS, _search(4), **scarce)
    _check(engine, tiny, 4, 1.0)
    num_recomputed, num_swapped = engine.num_preempted
    assert (num_recomputed > 0) == (mode != "swap")
    assert (num_swapped > 0) == (mode != "recompute")


def test_sampling_beside_a_search_is_unchanged(tiny: TinyModel) -> None:
    drawing = SamplingParams(max_tokens=_NUM_TOKENS, temperature=0.9, seed=3, num_logprobs=1)
    kinds = [_search(4), drawing, _search(2), replace(drawing, n=3, top_p=0.8, seed=4)]
    together = tokens_of(run(tiny, _PROMPTS, kinds, **_settings(tiny, 4, 256)))
    for index, (prompt, kind) in enumerate(zip(_PROMPTS, kinds, strict=True)):
        single = tokens_of(run(tiny, [prompt], kind, **_settings(tiny, 4, 256)))
        assert {(index, choice): ids for (_, choice), ids in single.items()} == {
            key: ids for key, ids in together.items() if key[0] == index
        }


def test_searches_that_began_apart_go_on_together(tiny: TinyModel) -> None:
    settings = _settings(tiny, 16, 128) | {"max_num_batched_tokens": 20}
    prompts = [_PROMPTS[0], list(range(90))]
    engine = run(tiny, prompts, _search(4, ignore_eos=True), **settings)
    num_decodes = [len(plan.decode_rows) for plan in engine.plans]
    assert 4 in num_decodes
    assert num_decodes[6:23] == [8] * 17


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("mode", ["quiet", "recompute", "swap"])
def test_log_probabilities_follow_the_hypothesis(tiny: TinyModel, mode: str, width: int) -> None:
    sampling = _search(width, num_logprobs=4)
    pressure: dict[str, Any] = {"preemption": SWAP, "swap_bytes": SWAP_BYTES}
    if mode == "recompute":
        pressure = {"preemption": RECOMPUTE}
    num_blocks = 128 if mode == "quiet" else 10 + 7 * width
    engine = run(tiny, _PROMPTS, sampling, **_settings(tiny, 4, num_blocks, **pressure))
    assert (sum(engine.num_preempted) > 0) == (mode != "quiet")
    for (index, _), reported in engine.reported.items():
        expected = _raw_logprobs(tiny, _PROMPTS[index], reported.tokens)
        for place, token in enumerate(reported.tokens):
            assert reported.logprobs[place] == pytest.approx(
                float(expected[place, token]), abs=1e-3
            )
            tokens, values = zip(*reported.tops[place], strict=True)
            top = expected[place].topk(4)
            assert list(tokens) == top.indices.tolist()
            assert list(values) == pytest.approx(top.values.tolist(), abs=1e-3)


@torch.inference_mode()
def _raw_logprobs(tiny: TinyModel, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """Log-probabilities [len(tokens), vocab_size] from one forward pass over a hypothesis."""
    logits: torch.Tensor = tiny.reference(torch.tensor([prompt + tokens[:-1]])).logits
    return logits[0, len(prompt) - 1 :].log_softmax(-1)


@pytest.mark.parametrize("width", [40, 128])
def test_a_width_may_exceed_half_the_vocabulary(tiny: TinyModel, width: int) -> None:
    settings = _settings(tiny, 4, 128 * 4, max_num_seqs=128)
    sampling = SamplingParams(max_tokens=4, beam_width=width, n=width, num_logprobs=1)
    engine = run(tiny, [_PROMPTS[0]], sampling, **settings)
    found = [engine.reported[0, choice] for choice in range(width)]
    assert len({tuple(reported.tokens) for reported in found}) == width
    scores = [sum(reported.logprobs) / len(reported.tokens) for reported in found]
    assert scores == sorted(scores, reverse=True)
