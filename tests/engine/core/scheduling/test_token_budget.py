"""Prompts get what a target leaves beside the decodes."""

import pytest

from engine.config import SchedulerConfig
from engine.core.scheduling.token_budget import TokenBudget


def _budget(target_s: float, long_step_share: float = 1.0) -> TokenBudget:
    config = SchedulerConfig(
        max_num_batched_tokens=2048,
        max_model_len=4096,
        inter_token_latency_s=target_s,
        long_step_share=long_step_share,
        prompt_share=1.0,
    )
    return TokenBudget(config)


def _rationed(share: float = 0.01) -> TokenBudget:
    """Decodes of 10 ms, prompt tokens of 50 us: 300 of them make a step of 25 ms."""
    budget = _budget(0.0, share)
    budget.observe(8, 0, 0.010)
    budget.observe(8, 256, 0.010 + 50e-6 * 256)
    return budget


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


def test_a_rare_long_prompt_is_computed_at_once_and_further_ones_are_cut() -> None:
    budget = _rationed()
    assert budget.num_tokens(8, 1200) == 8 + 1200
    budget.observe(8, 1200, 0.070)
    assert budget.num_tokens(8, 1200) == 8 + 300
    for _ in range(100):
        budget.observe(8, 0, 0.010)
    assert budget.num_tokens(8, 1200) == 8 + 1200


def test_prompts_that_few_usual_steps_compute_are_worth_no_long_one() -> None:
    assert _rationed().num_tokens(8, 900) == 8 + 300


def test_long_steps_are_saved_up_to_a_few() -> None:
    budget = _rationed()
    for _ in range(10_000):
        budget.observe(8, 0, 0.010)
    sizes = []
    for _ in range(5):
        sizes.append(budget.num_tokens(8, 2000))
        budget.observe(8, 2000, 0.010 + 50e-6 * 2000)
    assert sizes == [2008, 2008, 2008, 8 + 500, 8 + 500]


def test_what_waits_in_numbers_is_not_held_up() -> None:
    budget = _rationed(share=0.0)
    for _ in range(3):
        budget.observe(8, 2040, 0.112)
    assert budget.num_tokens(8, 4000) == 8 + 1000
    assert budget.num_tokens(8, budget.most_waiting) == 2048


def test_steps_without_decodes_and_a_target_know_no_long_ones() -> None:
    assert _rationed().num_tokens(0, 100) == 2048
    assert _budget(0.02, 0.01).most_waiting == _budget(0.0).most_waiting == 0


def test_a_step_takes_at_least_as_long_as_the_shortest_of_late() -> None:
    budget = _budget(0.0)
    budget.observe(8, 0, 0.005)
    for seconds in (0.010, 0.012, 0.030):
        budget.observe(8, 0, seconds)
    assert budget.least_s(8, 0) == 0.0
    for _ in range(4):
        budget.observe(8, 0, 0.020)
    assert budget.least_s(8, 0) == 0.005
    for _ in range(8):
        budget.observe(8, 0, 0.020)
    assert budget.least_s(8, 0) == 0.020
    assert budget.least_s(0, 0) == 0.0


def test_a_prompt_adds_half_of_what_its_tokens_took() -> None:
    budget = _rationed()
    for _ in range(8):
        budget.observe(8, 0, 0.010)
    assert budget.least_s(8, 300) == pytest.approx(0.010 + 0.0075)


def test_a_lone_prompt_has_a_larger_budget_until_something_decodes() -> None:
    config = SchedulerConfig(
        max_num_batched_tokens=64, lone_prompt_tokens=512, max_model_len=4096, prompt_share=1.0
    )
    budget = TokenBudget(config)
    assert budget.num_tokens(0, is_lone=True) == 512
    assert budget.num_tokens(0) == budget.num_tokens(1, is_lone=True) == 64
