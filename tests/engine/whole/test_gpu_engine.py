"""Whole engines on a GPU against the same on the CPU: the same tokens in every arrangement."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from llguidance import LLMatcher

import engine.worker.worker
from engine.types import SamplingParams
from engine.worker.swap import arriving_blocks
from tests.engine.model.tiny import TinyModel, save_tiny
from tests.engine.whole.engine_run import RECOMPUTE, SWAP, SWAP_BYTES, Run, run, tokens_of
from tests.engine.whole.grammars.tokens import END_ID, with_tokenizer

pytestmark = pytest.mark.gpu

_NUM_TOKENS = 64
_GREEDY = SamplingParams(max_tokens=_NUM_TOKENS, temperature=0.0)
_PROMPTS = [
    list(range(start, start + length)) for start, length in ((0, 3), (50, 41), (100, 17), (7, 60))
]
_SCARCE = {"num_blocks": 40, "block_size": 4, "max_model_len": 128, "swap_bytes": SWAP_BYTES}
_ARRANGEMENTS: dict[str, dict[str, Any]] = {
    "graphs": {},
    "no graphs": {"graphs": False},
    "one at a time": {"run_ahead": 1},
    "without kernels": {"compiled_kernels": False},
    "small blocks, small chunks": {"block_size": 4, "max_num_batched_tokens": 11},
    "recompute": {**_SCARCE, "preemption": RECOMPUTE},
    "swap": {**_SCARCE, "preemption": SWAP},
    "swap without graphs": {**_SCARCE, "preemption": SWAP, "graphs": False},
}


@pytest.fixture(autouse=True)
def _one_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    models: dict[str, TinyModel] = {}

    def save(name: str) -> TinyModel:
        if name not in models:
            folder: Path = tmp_path_factory.mktemp(name)
            models[name] = with_tokenizer(save_tiny(name, folder), folder)
        return models[name]

    return save


@pytest.mark.parametrize("arrangement", _ARRANGEMENTS)
@pytest.mark.parametrize("name", ["tied_llama3", "opt", "gpt2"])
def test_greedy_ids_equal_transformers(
    saved: Callable[[str], TinyModel], name: str, arrangement: str
) -> None:
    tiny = saved(name)
    engine = run(tiny, _PROMPTS, _GREEDY, device="cuda", **_ARRANGEMENTS[arrangement])
    assert [*tokens_of(engine).values()] == [tiny.greedy(p, _NUM_TOKENS) for p in _PROMPTS]
    assert any(engine.num_preempted) == ("preemption" in _ARRANGEMENTS[arrangement])


@pytest.mark.parametrize("arrangement", ["graphs", "no graphs", "recompute", "swap"])
@pytest.mark.parametrize("name", ["gemma3", "mistral_window"])
def test_windows_equal_transformers(
    saved: Callable[[str], TinyModel], name: str, arrangement: str
) -> None:
    tiny = saved(name)
    settings = _ARRANGEMENTS[arrangement]
    if "num_blocks" in settings:
        # the fewest that hold a sequence: what windows leave is free
        settings = settings | {"num_blocks": 32}
    engine = run(tiny, _PROMPTS, _GREEDY, device="cuda", **settings)
    assert [*tokens_of(engine).values()] == [tiny.greedy(p, _NUM_TOKENS) for p in _PROMPTS]


_GRAMMAR = LLMatcher.grammar_from_regex("([a-f]{3}-)*[0-9]{2}")
_KINDS = {
    "drawn": replace(_GREEDY, temperature=1.1, seed=5),
    "filtered": replace(_GREEDY, temperature=1.1, seed=5, top_k=40, top_p=0.9, min_p=0.01),
    "choices": replace(_GREEDY, max_tokens=24, temperature=1.1, seed=5, n=3),
    "beams": replace(_GREEDY, max_tokens=24, beam_width=3, n=3),
    "wide beams": replace(_GREEDY, max_tokens=24, beam_width=8, n=8),
    "penalties": replace(_GREEDY, max_tokens=24, repetition_penalty=1.3, frequency_penalty=0.2),
    "ruled": replace(
        _GREEDY,
        max_tokens=24,
        allowed_token_ids=tuple(range(90)),
        logit_bias=((7, 3.0), (9, -2.0)),
        bad_words=tuple((a, b) for a in range(40) for b in range(40, 43)),
        min_tokens=9,
        stop_token_ids=tuple(range(0, 90, 3)),
    ),
    "prompt scores": replace(_GREEDY, max_tokens=24, prompt_logprobs=2),
    "grammar": replace(_GREEDY, max_tokens=24, temperature=1.1, seed=5, n=2, grammar=_GRAMMAR),
    "grammar beams": replace(_GREEDY, max_tokens=24, beam_width=3, n=3, grammar=_GRAMMAR),
    "logprobs": replace(_GREEDY, max_tokens=24, num_logprobs=2),
}


@pytest.mark.parametrize("arrangement", ["graphs", "recompute", "swap"])
@pytest.mark.parametrize("kind", _KINDS)
def test_every_kind_of_request_gives_what_the_cpu_gives(
    saved: Callable[[str], TinyModel], kind: str, arrangement: str
) -> None:
    tiny, sampling = saved("tied_llama3"), _KINDS[kind]
    settings = {"max_num_seqs": 32, **_ARRANGEMENTS[arrangement]}
    if kind == "wide beams" and "num_blocks" in settings:
        # hardly more than the longest prompt's beams need
        settings["num_blocks"] = 64
    if kind == "grammar" and "num_blocks" in settings:
        # its answers are short
        settings["num_blocks"] = 32
    model = tiny.config().model
    if sampling.grammar is not None:
        model = replace(model, eos_token_ids=(END_ID,))
    on_gpu = run(tiny, _PROMPTS, sampling, device="cuda", model=model, **settings)
    on_cpu = run(tiny, _PROMPTS, sampling, max_num_seqs=16, model=model)
    assert tokens_of(on_gpu) == tokens_of(on_cpu)
    assert any(on_gpu.num_preempted) == ("preemption" in settings)


@pytest.mark.parametrize("arrangement", ["graphs", "no graphs", "small blocks, small chunks"])
def test_a_prompt_goes_on_from_what_decodes_have_written(
    saved: Callable[[str], TinyModel], arrangement: str
) -> None:
    tiny, sampling = saved("tied_llama3"), replace(_GREEDY, max_tokens=40)
    settings = {"block_size": 16, **_ARRANGEMENTS[arrangement]}
    engine = Run(tiny, device="cuda", **settings)
    engine.add(0, _PROMPTS[1], sampling)
    engine.drain()
    answered = _PROMPTS[1] + engine.reported[0, 0].tokens
    engine.add(1, [*answered, 5, 6], sampling)
    engine.drain()
    assert engine.reported[1, 0].tokens == tiny.greedy([*answered, 5, 6], 40)
    assert engine.stats is not None
    size = settings["block_size"]
    assert engine.stats.num_cached_tokens == (len(answered) - 1) // size * size


@pytest.mark.parametrize("fewest_tokens", [1, 1 << 30], ids=["by layers", "whole"])
def test_a_prompt_goes_on_from_blocks_of_the_swap_space(
    saved: Callable[[str], TinyModel], fewest_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arriving_blocks, "_FEWEST_PART_BYTES", 1)
    monkeypatch.setattr(engine.worker.worker, "_FEWEST_FED_IN_PARTS", fewest_tokens)
    tiny, sampling = saved("tied_llama3"), replace(_GREEDY, max_tokens=20)
    settings: dict[str, Any] = {**_SCARCE, "max_num_seqs": 4, "num_blocks": 32}
    whole = Run(tiny, device="cuda", **settings)
    prompts = [list(range(start, start + 90)) for start in (3, 50, 90)]
    for index, prompt in enumerate([*prompts, *prompts]):
        # another tail, so that a step has tokens to prefill
        asked = [*prompt[:80], *prompt[80 - index : 90 - index]]
        whole.add(index, asked, sampling)
        whole.drain()
        assert whole.reported[index, 0].tokens == tiny.greedy(asked, 20)
    assert whole.stats is not None
    assert whole.stats.num_restored_tokens > 100


def test_no_request_waits_for_a_compiler(saved: Callable[[str], TinyModel]) -> None:
    knobs = pytest.importorskip("triton").knobs.runtime
    tiny = saved("tied_llama3")
    model = replace(tiny.config().model, eos_token_ids=(END_ID,))
    engine = Run(tiny, device="cuda", dtype="bfloat16", max_num_seqs=16, model=model)
    compiled: list[str] = []

    def note(*, repr: str, **_: Any) -> None:
        compiled.append(repr)

    before, knobs.jit_post_compile_hook = knobs.jit_post_compile_hook, note
    try:
        more = [replace(_KINDS["logprobs"], deterministic=True), replace(_GREEDY, top_p=0.5)]
        for index, kind in enumerate([_GREEDY, *_KINDS.values(), *more]):
            for place, prompt in enumerate(_PROMPTS):
                engine.add(4 * index + place, prompt, kind)
                # some come while others decode
                engine.step()
        engine.drain()
    finally:
        knobs.jit_post_compile_hook = before
    assert compiled == []
