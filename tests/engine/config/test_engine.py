from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from engine.config import EngineConfig, SchedulerConfig
from tests.app.settings.test_engine_settings import MODEL

NEEDED: dict[str, Any] = {
    "model_path": "",
    "dtype": "float32",
    "device": "cpu",
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "max_model_len": 32,
}


def test_options_find_their_place_by_name() -> None:
    config = EngineConfig.from_options(model=MODEL, **NEEDED, block_size=8, watermark=0.25)
    assert config == EngineConfig(
        model_path="",
        model=MODEL,
        dtype="float32",
        device="cpu",
        max_num_seqs=4,
        block_size=8,
        scheduler=SchedulerConfig(
            max_num_batched_tokens=64, max_model_len=32, eos_token_ids=(2,), watermark=0.25
        ),
    )


def test_sequences_end_at_the_models_ids_unless_others_are_given() -> None:
    plain = EngineConfig.from_options(model=MODEL, **NEEDED)
    other = EngineConfig.from_options(model=MODEL, **NEEDED, eos_token_ids=(7, 8))
    assert plain.scheduler.eos_token_ids == MODEL.eos_token_ids == (2,)
    assert other.scheduler.eos_token_ids == (7, 8)


@pytest.mark.parametrize(
    ("num_blocks", "options", "expected"),
    [
        (4, {}, 32),
        (3, {}, 24),
        (0, {}, 2),
        # two may be pinned, and one is kept free
        (5, {"pinned_prefix_share": 0.4, "watermark": 0.2}, 16),
        (5, {"watermark": 0.2}, 32),
        (3, {"clips_context": False}, 32),
    ],
)
def test_a_context_is_clipped_to_a_pool_beside_its_pins(
    num_blocks: int, options: dict[str, Any], expected: int
) -> None:
    needed = {"max_num_batched_tokens": 64, "max_model_len": 32, "clips_context": True}
    config = SchedulerConfig(**(needed | options))
    fitted = config.fitted(num_blocks, 8)
    assert fitted == replace(config, max_model_len=expected)
    assert fitted.fitted(num_blocks, 8) is fitted


def test_changes_reach_both_parts_and_leave_the_rest() -> None:
    config = EngineConfig.from_options(model=MODEL, **NEEDED, prompt_share=0.25)
    changed = config.with_options(max_num_seqs=5, prefix_cache=False)
    assert (changed.max_num_seqs, changed.scheduler.prefix_cache) == (5, False)
    assert changed.scheduler.prompt_share == 0.25
    assert replace(changed, max_num_seqs=4, scheduler=config.scheduler) == config


def test_options_are_read_by_name() -> None:
    config = EngineConfig.from_options(model=MODEL, **NEEDED, growth_blocks=2.0)
    options = config.options()
    assert options.items() >= NEEDED.items()
    assert options["growth_blocks"] == 2.0
    assert "scheduler" not in options
    assert EngineConfig.from_options(**options) == config


def test_unknown_and_missing_options_are_refused() -> None:
    with pytest.raises(TypeError, match="blok_size"):
        EngineConfig.from_options(model=MODEL, **NEEDED, blok_size=8)
    config = EngineConfig.from_options(model=MODEL, **NEEDED)
    with pytest.raises(TypeError, match="blok_size"):
        config.with_options(blok_size=8)
    for name in NEEDED:
        with pytest.raises(TypeError, match=name):
            EngineConfig.from_options(model=MODEL, **{k: NEEDED[k] for k in NEEDED if k != name})


def test_a_configuration_cannot_be_changed_in_place() -> None:
    config = EngineConfig.from_options(model=MODEL, **NEEDED)
    with pytest.raises(FrozenInstanceError):
        config.block_size = 8  # type: ignore[misc]


def test_a_prompt_takes_at_least_a_token_of_a_step() -> None:
    settings = SchedulerConfig(max_num_batched_tokens=64, max_model_len=32)
    assert settings.max_chunk == 32
    assert replace(settings, prompt_share=0.001).max_chunk == 1


def test_the_largest_step_is_that_of_a_lone_prompt_as_far_as_prompts_go() -> None:
    settings = SchedulerConfig(max_num_batched_tokens=64, max_model_len=256)
    assert settings.max_step_tokens == 64
    assert replace(settings, lone_prompt_tokens=32).max_step_tokens == 64
    assert replace(settings, lone_prompt_tokens=128).max_step_tokens == 128
    assert replace(settings, lone_prompt_tokens=1024).max_step_tokens == 256


def test_a_context_is_clipped_to_what_windows_leave() -> None:
    config = SchedulerConfig(max_num_batched_tokens=4, max_model_len=99, clips_context=True)
    assert config.fitted(10, 4, (0, 6)).max_model_len == 64
    assert config.fitted(10, 4, (6,)) is config
