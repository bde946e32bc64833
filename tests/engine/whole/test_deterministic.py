"""Deterministic requests: the same bits, whatever else runs and however they are run."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from engine.config import EngineConfig, ExpertsSpec, LayerSpec, ModelConfig, ModelSpec
from engine.core.scheduling.preemption import Preemption
from engine.types import SamplingParams
from tests.engine.model.tiny import TinyModel
from tests.engine.whole.engine_run import (
    RECOMPUTE,
    SWAP,
    SWAP_BYTES,
    Alternating,
    ChoiceReport,
    Model,
    Run,
)

_PROMPTS = [
    list(range(10, 13)),
    list(range(20, 61)),
    list(range(100, 117)),
    list(range(150, 182)),
]
_SAMPLING = SamplingParams(
    max_tokens=24, temperature=0.9, seed=5, num_logprobs=4, deterministic=True, ignore_eos=True
)
# heads and widths of SmolLM2-135M, with fewer layers and tokens
_SMOL = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=2048,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=3,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    max_position=2048,
    norm_eps=1e-5,
    tie_embeddings=True,
)
_MIXED = replace(
    _SMOL,
    architecture="Qwen3MoeForCausalLM",
    vocab_size=307,
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    spec=ModelSpec(
        layers=(LayerSpec(mlp="experts"),),
        qk_norm="head",
        experts=ExpertsSpec(num_experts=8, top_k=2, intermediate_size=64, renormalises=True),
    ),
)
# as many layers as SmolLM2-135M has, so that a difference of one bit has room to grow
_DEEP = replace(
    _SMOL,
    vocab_size=307,
    hidden_size=64,
    intermediate_size=96,
    num_layers=30,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
)


@dataclass(frozen=True)
class Dummy:
    """Random weights in some shape."""

    shape: ModelConfig

    def config(self, **settings: Any) -> EngineConfig:
        defaults: dict[str, Any] = {
            "model_path": "",
            "model": self.shape,
            "dtype": "bfloat16",
            "device": "cpu",
            "load_format": "dummy",
            "num_blocks": 512,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 256,
            "max_model_len": 256,
        }
        return EngineConfig.from_options(**(defaults | settings))


@pytest.fixture(
    scope="module",
    params=[
        "bfloat16",
        "float32",
        "float32 without kernels",
        pytest.param("bfloat16 without kernels", marks=pytest.mark.slow),
    ],
)
def setting(request: pytest.FixtureRequest, tiny: TinyModel) -> tuple[Model, dict[str, Any]]:
    dtype, _, fallback = request.param.partition(" ")
    model: Model = Dummy(_SMOL) if dtype == "bfloat16" else tiny
    return model, {
        "dtype": dtype,
        "compiled_kernels": not fallback,
        "max_num_seqs": 32,
        "block_size": 4,
    }


def _run(
    setting: tuple[Model, dict[str, Any]],
    prompts: list[list[int]],
    kinds: list[SamplingParams],
    **more: Any,
) -> Run:
    model, settings = setting
    engine = Run(model, **(settings | more))
    for index, (prompt, kind) in enumerate(zip(prompts, kinds, strict=True)):
        engine.add(index, prompt, kind)
    engine.drain()
    return engine


def _bits(reported: ChoiceReport) -> tuple[Any, ...]:
    """Floats of the results, which are compared without tolerance."""
    return reported.tokens, reported.logprobs, reported.tops


def _single(setting: tuple[Model, dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [_bits(_run(setting, [prompt], [_SAMPLING]).reported[0, 0]) for prompt in _PROMPTS]


@pytest.fixture(scope="module")
def single(setting: tuple[Model, dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What each prompt gets where nothing else runs."""
    return _single(setting)


def test_bits_are_the_same_alone_and_in_a_batch_of_16(
    setting: tuple[Model, dict[str, Any]], single: list[tuple[Any, ...]]
) -> None:
    others = [list(range(index, 5 * index + 4)) for index in range(12)]
    plain = replace(_SAMPLING, deterministic=False)
    kinds = [_SAMPLING] * 4 + [plain] * 12
    for max_num_batched_tokens in (64, 256):
        together = _run(
            setting,
            _PROMPTS + others,
            kinds,
            max_num_batched_tokens=max_num_batched_tokens,
        )
        assert [_bits(together.reported[index, 0]) for index in range(4)] == single


@pytest.mark.in_turn
@pytest.mark.parametrize("chunk", [1, 5, 33])
def test_bits_are_the_same_for_any_chunks(
    setting: tuple[Model, dict[str, Any]], single: list[tuple[Any, ...]], chunk: int
) -> None:
    chunked = _run(setting, _PROMPTS, [_SAMPLING] * 4, max_num_batched_tokens=chunk)
    assert [_bits(chunked.reported[index, 0]) for index in range(4)] == single


@pytest.mark.in_turn
@pytest.mark.parametrize("preemption", [RECOMPUTE, SWAP, Alternating()])
def test_bits_are_the_same_after_preemptions(
    setting: tuple[Model, dict[str, Any]],
    single: list[tuple[Any, ...]],
    preemption: Preemption,
) -> None:
    tight = _run(
        setting,
        _PROMPTS,
        [_SAMPLING] * 4,
        num_blocks=20,
        max_model_len=80,
        preemption=preemption,
        swap_bytes=SWAP_BYTES,
    )
    assert sum(tight.num_preempted) > 0
    assert [_bits(tight.reported[index, 0]) for index in range(4)] == single


@pytest.mark.slow
def test_bits_are_the_same_through_thirty_layers() -> None:
    deep: tuple[Model, dict[str, Any]] = Dummy(_DEEP), {"block_size": 4, "max_num_seqs": 16}
    single = _single(deep)
    plain = replace(_SAMPLING, deterministic=False)
    tight = {"num_blocks": 20, "max_model_len": 80, "swap_bytes": SWAP_BYTES}
    for settings in (
        {"max_num_batched_tokens": 64},
        {"max_num_batched_tokens": 16, "preemption": SWAP} | tight,
        {"max_num_batched_tokens": 33, "preemption": RECOMPUTE} | tight,
    ):
        kinds = [_SAMPLING] * 4 + [plain] * 4
        together = _run(deep, _PROMPTS * 2, kinds, **settings)
        assert [_bits(together.reported[index, 0]) for index in range(4)] == single
        assert sum(together.num_preempted) > 0 or "num_blocks" not in settings


@pytest.mark.parametrize("compiled_kernels", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_bits_of_experts_are_the_same_in_batches_of_any_size(compiled_kernels: bool) -> None:
    mixed = Dummy(_MIXED), {"max_num_seqs": 16, "compiled_kernels": compiled_kernels}
    single = _single(mixed)
    plain = replace(_SAMPLING, deterministic=False)
    for max_num_batched_tokens in (16, 256):
        together = _run(
            mixed,
            _PROMPTS * 2,
            [_SAMPLING] * 4 + [plain] * 4,
            max_num_batched_tokens=max_num_batched_tokens,
        )
        assert [_bits(together.reported[index, 0]) for index in range(4)] == single


def test_bits_do_not_come_from_a_cache_that_others_filled(
    setting: tuple[Model, dict[str, Any]], single: list[tuple[Any, ...]]
) -> None:
    model, settings = setting
    engine = Run(model, **settings)
    for request_id, is_deterministic in enumerate((False, True)):
        engine.add(request_id, _PROMPTS[1], replace(_SAMPLING, deterministic=is_deterministic))
        engine.drain()
    assert _bits(engine.reported[1, 0]) == single[1]


def test_choices_and_rules_keep_their_bits(setting: tuple[Model, dict[str, Any]]) -> None:
    kind = replace(_SAMPLING, repetition_penalty=1.2, frequency_penalty=0.3, top_p=0.9)
    together = _run(setting, _PROMPTS, [replace(kind, n=2)] * 4)
    # a prompt of one chunk, and one of several blocks
    for index, prompt in enumerate(_PROMPTS[:2]):
        for choice in range(2):
            single = _run(setting, [prompt], [replace(kind, seed=kind.seed + choice)])
            assert _bits(together.reported[index, choice]) == _bits(single.reported[0, 0])


def test_a_deterministic_request_is_near_a_plain_one(tiny: TinyModel) -> None:
    for kind in (_SAMPLING, replace(_SAMPLING, deterministic=False)):
        reported = _run((tiny, {}), [_PROMPTS[1]], [kind]).reported[0, 0]
        raw = tiny.logprobs(_PROMPTS[1] + reported.tokens)
        for position, (token, logprob) in enumerate(
            zip(reported.tokens, reported.logprobs, strict=True)
        ):
            assert raw[len(_PROMPTS[1]) - 1 + position, token] == pytest.approx(logprob, abs=1e-4)
