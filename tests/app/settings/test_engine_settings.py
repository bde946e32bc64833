"""How automatic settings are filled in, and which ones contradict each other."""

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.settings.config import parse_config
from app.settings.engine_settings import to_engine_config
from engine.config import EngineConfig, ModelConfig
from engine.errors import ConfigError

MODEL = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=32,
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=8,
    num_kv_heads=4,
    head_dim=8,
    max_position=1024,
    norm_eps=1e-5,
    eos_token_ids=(2,),
)
# 2 layers x (key, value) x 4 heads x 8 values x 4 bytes
TOKEN_BYTES = 512


def settings(model: ModelConfig = MODEL, **args: Any) -> EngineConfig:
    args = {"device": "cpu", "dtype": "float32"} | args
    return to_engine_config(parse_config(args), Path("/models/m"), model)


def gib(num_tokens: float) -> float:
    return num_tokens * TOKEN_BYTES / (1 << 30)


def test_swapping_and_caching_reach_the_engine() -> None:
    engine = settings(swap_gib=gib(64), preemption="swap", prefix_cache=False)
    assert engine.swap_bytes == 64 * TOKEN_BYTES
    assert (engine.scheduler.preemption, engine.scheduler.prefix_cache) == ("swap", False)
    default = settings().scheduler
    assert (settings().swap_bytes, default.preemption, default.prefix_cache) == (0, "auto", True)


def test_policies_reach_the_scheduler() -> None:
    scheduler = settings(
        memory_policy="reserved_max",
        watermark=0.1,
        growth_blocks=1.5,
        max_overtakes=2,
        prompt_share=0.25,
        max_num_batched_tokens=256,
    ).scheduler
    assert scheduler.memory_policy == "reserved_max"
    assert (scheduler.watermark, scheduler.growth_blocks) == (0.1, 1.5)
    assert (scheduler.max_overtakes, scheduler.max_chunk) == (2, 64)
    assert settings(max_num_batched_tokens=64, prompt_share=0.001).scheduler.max_chunk == 1


def test_only_steps_of_a_gpu_are_filled_unless_it_is_configured() -> None:
    assert [settings(device=device).scheduler.fills_steps for device in ("cpu", "cuda")] == [
        False,
        True,
    ]
    assert settings(fills_steps=True).scheduler.fills_steps


RESERVED = {"memory_policy": "reserved_max"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"preemption": "swap"}, "preemption swap needs swap space, but swap_gib is 0"),
        ({"swap_gib": 1e-9}, "swap_gib 1e-09 does not hold one block"),
        ({"swap_gib": gib(15.99)}, "does not hold one block: 16 tokens"),
        (
            RESERVED | {"preemption": "recompute"},
            "reserved_max never preempts, so preemption recompute",
        ),
        (
            RESERVED | {"swap_gib": 0.01},
            "swap_gib 0.01 have no use; leave them at auto and 0",
        ),
        (
            RESERVED | {"num_blocks": 63, "max_model_len": 1000},
            "reserves 64 blocks for every sequence of max_model_len 1000, and the KV pool has 63",
        ),
        (
            {"num_blocks": 10, "max_model_len": 161},
            "holds 160 tokens (10 blocks of 16), fewer than max_model_len 161; raise num_blocks",
        ),
        ({"kv_cache_gib": gib(160), "max_model_len": 161}, "raise kv_cache_gib to"),
        ({"kv_cache_gib": gib(15)}, "does not hold one block: 16 tokens"),
        (
            {"num_blocks": 65, "max_model_len": 1025},
            "max_model_len 1025 is above the model's 1024 tokens",
        ),
        (
            {"max_num_seqs": 8, "max_num_batched_tokens": 7},
            "max_num_batched_tokens 7 is below max_num_seqs 8",
        ),
        ({"pinned_prefix_share": 0.1, "prefix_cache": False}, "prefix_cache true"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_with_its_numbers(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        settings(**args)


def test_options_reach_the_engine() -> None:
    engine = settings(
        num_blocks=64, max_num_seqs=3, max_num_batched_tokens=9, max_num_waiting=5, num_threads=2
    )
    assert engine == EngineConfig.from_options(
        model_path="/models/m",
        model=MODEL,
        dtype="float32",
        device="cpu",
        num_blocks=64,
        kv_cache_bytes=512 << 20,
        max_num_seqs=3,
        max_num_batched_tokens=9,
        max_model_len=1024,
        max_num_waiting=5,
        num_threads=2,
        fills_steps=False,
    )
    assert engine.scheduler.eos_token_ids == (2,)


def test_the_pool_takes_as_many_whole_blocks_as_fit() -> None:
    assert settings(kv_cache_gib=gib(1024)).num_blocks == 64
    assert settings(kv_cache_gib=gib(1039.9)).num_blocks == 64
    assert settings(kv_cache_gib=gib(1024), dtype="bfloat16").num_blocks == 128
    assert settings(kv_cache_gib=gib(1024), tensor_parallel_size=2).num_blocks == 128


def test_a_gpu_is_measured_before_it_is_shared_out() -> None:
    on_gpu = settings(device="cuda", gpu_memory_fraction=0.5)
    assert (on_gpu.num_blocks, on_gpu.kv_cache_bytes) == (0, 0)
    assert (on_gpu.gpu_memory_fraction, on_gpu.scheduler.max_model_len) == (0.5, 1024)
    assert settings(device="cuda", kv_cache_gib=gib(1024)).num_blocks == 64


def test_only_a_context_that_nobody_set_is_clipped_to_what_a_gpu_has() -> None:
    assert settings(device="cuda").scheduler.fitted(10, 16).max_model_len == 160
    given = settings(device="cuda", max_model_len=1024).scheduler
    assert given.fitted(10, 16) is given


def test_limits_of_the_batch_follow_the_device_and_each_other() -> None:
    def limits(**options: Any) -> tuple[int, int]:
        engine = settings(num_blocks=64, **options)
        return engine.max_num_seqs, engine.scheduler.max_num_batched_tokens

    assert limits() == (64, 256)
    assert limits(device="cuda") == (256, 2048)
    assert limits(max_num_seqs=300) == (300, 300)
    assert limits(max_num_batched_tokens=9) == (9, 9)


def test_a_lone_prompt_has_larger_steps_where_they_are_set() -> None:
    assert settings(num_blocks=64).scheduler.max_step_tokens == 256
    assert settings(num_blocks=64, lone_prompt_tokens=512).scheduler.max_step_tokens == 512


def test_a_latency_target_reaches_the_scheduler() -> None:
    engine = settings(num_blocks=64, inter_token_latency_ms=25.0)
    assert engine.scheduler.inter_token_latency_s == 0.025


def test_automatic_context_is_the_models_or_what_the_pool_holds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert settings(num_blocks=64).scheduler.max_model_len == 1024
    assert not caplog.records
    assert settings(num_blocks=63).scheduler.max_model_len == 1008
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "1008" in caplog.text
    assert "1024" in caplog.text


def test_a_context_may_be_all_that_model_and_pool_have() -> None:
    assert settings(num_blocks=64, max_model_len=1024).scheduler.max_model_len == 1024


def test_the_advised_pool_size_is_enough() -> None:
    for context in (161, 1000, 1024):
        with pytest.raises(ConfigError) as caught:
            settings(kv_cache_gib=gib(160), max_model_len=context)
        advised = str(caught.value).partition("kv_cache_gib to ")[2].split()[0]
        assert settings(kv_cache_gib=float(advised), max_model_len=context)


@pytest.mark.parametrize(
    ("size", "what"),
    [(3, "8 attention heads"), (16, "8 attention heads"), (5, "8 attention heads")],
)
def test_a_split_that_does_not_come_out_even_is_refused(size: int, what: str) -> None:
    with pytest.raises(ConfigError, match=f"tensor_parallel_size {size} does not divide .* {what}"):
        settings(tensor_parallel_size=size)


def test_key_value_heads_are_copied_where_there_are_more_ranks() -> None:
    assert settings(tensor_parallel_size=8, kv_cache_gib=gib(1024)).num_blocks == 256
    grouped = replace(MODEL, num_heads=12, num_kv_heads=4)
    with pytest.raises(ConfigError, match=r"4 key-value heads .* tensor_parallel_size=6 ranks"):
        settings(grouped, tensor_parallel_size=6)


def test_an_uneven_feed_forward_split_is_refused() -> None:
    many_heads = replace(MODEL, num_heads=64, num_kv_heads=64)
    with pytest.raises(ConfigError, match="64 does not divide the model's 96 intermediate rows"):
        settings(many_heads, tensor_parallel_size=64)


def test_a_step_may_hold_just_a_token_of_every_sequence() -> None:
    assert settings(max_num_seqs=8, max_num_batched_tokens=8).scheduler.max_num_batched_tokens == 8


def test_automatic_dtype_is_one_that_the_device_computes_in() -> None:
    assert settings(dtype="auto").dtype in ("bfloat16", "float32")
    assert settings(dtype="auto", device="cuda").dtype == "bfloat16"
    assert settings(dtype="float16").dtype == "float16"


def test_the_context_is_clipped_to_what_pinned_prefixes_leave() -> None:
    engine = settings(num_blocks=100, block_size=4, pinned_prefix_share=0.25)
    assert engine.scheduler.pinned_prefix_share == 0.25
    # 25 blocks may be pinned, one is kept free, or as many as the watermark says
    assert engine.scheduler.max_model_len == 74 * 4
    engine = settings(num_blocks=100, block_size=4, pinned_prefix_share=0.25, watermark=0.2)
    assert engine.scheduler.max_model_len == 55 * 4
    assert settings(num_blocks=100, block_size=4).scheduler.max_model_len == 400


def test_a_share_for_pinned_prefixes_that_starves_the_longest_request_is_refused() -> None:
    args: dict[str, Any] = {"num_blocks": 100, "block_size": 4, "max_model_len": 300}
    assert settings(**args, pinned_prefix_share=0.24).scheduler.max_model_len == 300
    with pytest.raises(ConfigError, match=r"leaves 74 of 100 blocks.*max_model_len 300 needs 75"):
        settings(**args, pinned_prefix_share=0.25)
