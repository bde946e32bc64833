"""Prompts get what a target leaves beside the decodes."""

import pytest

from engine.config import SchedulerConfig
from engine.core.scheduling.token_budget import TokenBudget


def _budget(target_s: float) -> TokenBudget:
    config = SchedulerConfig(
        max_num_batched_tokens=2048,
        max_model_len=4096,
        inter_token_latency_s=target_s,
        prompt_share=1.0,
    )
    return TokenBudget(config)


def test_without_a_target_or_decodes_the_budget_is_the_most() -> None:
    free = _budget(0.0)
    free.observe(8, 512, 1.0)
    assert free.num_tokens(8) == 2048
    assert _budget(0.02).num_tokens(0) == 2048


def test_prompts_are_cut_to_what_the_target_leaves() -> None:
    budget = _budget(0.020)
    budget.observe(64, 0, 0.010)
    budget.observe(64, 256, 0.020)
    # ten milliseconds are left, and 256 tokens take that long
    assert budget.num_tokens(64) == 64 + 256
    for _ in range(100):
        budget.observe(64, 256, 0.015)
    assert budget.num_tokens(64) == pytest.approx(64 + 512, abs=8)


def test_prompts_make_progress_where_decodes_by_themselves_miss_the_target() -> None:
    budget = _budget(0.005)
    budget.observe(64, 0, 0.010)
    budget.observe(64, 256, 0.020)
    assert 64 < budget.num_tokens(64) < 256


def test_without_steps_of_only_decodes_the_whole_step_keeps_to_the_target() -> None:
    budget = _budget(0.020)
    num_tokens = 8 + 256
    for _ in range(200):
        budget.observe(8, num_tokens - 8, 0.008 + 50e-6 * (num_tokens - 8))
        num_tokens = budget.num_tokens(8)
    assert 0.008 + 50e-6 * (num_tokens - 8) == pytest.approx(0.020, rel=0.1)


def test_a_long_step_without_decodes_teaches_nothing() -> None:
    budget = _budget(0.020)
    before = budget.num_tokens(4)
    budget.observe(0, 2048, 1.0)
    assert budget.num_tokens(4) == before


def test_a_lone_prompt_has_a_larger_budget_until_something_decodes() -> None:
    config = SchedulerConfig(
        max_num_batched_tokens=64, lone_prompt_tokens=512, max_model_len=4096, prompt_share=1.0
    )
    budget = TokenBudget(config)
    assert budget.num_tokens(0, is_lone=True) == 512
    assert budget.num_tokens(0) == budget.num_tokens(1, is_lone=True) == 64
