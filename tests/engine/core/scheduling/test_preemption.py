"""Which way preempted groups come back, by cost."""

import pytest

from engine.config import SchedulerConfig
from engine.core.engine import Engine
from engine.core.scheduling.preemption import CheapestPreemption, PrefillRate
from engine.types import Capacity, Request, SamplingParams, StepPlan, int32
from load_tests.simulator.simulated_executor import PROMPT_TOKEN, SimulatedExecutor
from load_tests.simulator.step_time import LinearStepTime
from tests.engine.core.harness.groups import group_of


def _cheapest(block_copy_s: float) -> CheapestPreemption:
    """With prefills that take a second a token."""
    preemption = CheapestPreemption(block_copy_s=block_copy_s)
    preemption.observe(_step(num_prefilled=8), 8.0)
    return preemption


def _step(*, num_prefilled: int, num_decoded: int = 0, num_swapped_in: int = 0) -> StepPlan:
    return StepPlan(
        step=0,
        swap_in_destinations=int32([1] * num_swapped_in),
        decode_rows=int32(list(range(num_decoded))),
        prefill_tokens=int32([7] * num_prefilled),
    )


@pytest.mark.parametrize(("block_copy_s", "swaps"), [(0.9, True), (1.1, False)])
def test_the_cheaper_way_is_chosen(block_copy_s: float, swaps: bool) -> None:
    # two blocks are copied out and in again, or four tokens prefilled
    group = group_of([1, 2, 3], (4,))
    assert _cheapest(block_copy_s).prefers_swap(group, num_blocks=2, num_kept=0) is swaps


@pytest.mark.parametrize(("block_copy_s", "swaps"), [(1.4, True), (1.6, False)])
def test_a_prompt_that_siblings_share_is_prefilled_once(block_copy_s: float, swaps: bool) -> None:
    # 3 tokens of the prompt, 3 of output
    group = group_of([1, 2, 3], (4,), (5, 6))
    assert _cheapest(block_copy_s).prefers_swap(group, num_blocks=2, num_kept=0) is swaps


@pytest.mark.parametrize(("block_copy_s", "swaps"), [(0.4, True), (0.6, False)])
def test_tokens_that_others_keep_cost_nothing(block_copy_s: float, swaps: bool) -> None:
    # two of four tokens are computed again, but both blocks would be copied
    group = group_of([1, 2, 3], (4,))
    assert _cheapest(block_copy_s).prefers_swap(group, num_blocks=2, num_kept=2) is swaps


def test_without_a_rate_only_siblings_are_swapped() -> None:
    preemption = CheapestPreemption(block_copy_s=1.0)
    assert not preemption.prefers_swap(group_of([1], (2,)), num_blocks=1, num_kept=0)
    assert preemption.prefers_swap(group_of([1], (2,), (3,)), num_blocks=1, num_kept=0)


def test_the_prefill_rate_is_that_of_steps_that_prefill() -> None:
    rate = PrefillRate()
    assert rate.token_s == 0
    rate.note(_step(num_prefilled=60, num_decoded=20), 8.0)
    assert rate.token_s == pytest.approx(0.1)
    rate.note(_step(num_prefilled=20, num_decoded=20), 99.0)
    rate.note(_step(num_prefilled=60, num_swapped_in=1), 99.0)
    rate.note(_step(num_prefilled=0), 99.0)
    assert rate.token_s == pytest.approx(0.1)


def test_the_prefill_rate_follows_the_machine() -> None:
    rate = PrefillRate()
    for seconds in [5.0] + [1.0] * 40:
        rate.note(_step(num_prefilled=10), seconds)
    assert rate.token_s == pytest.approx(0.1, rel=0.02)


def test_the_scheduler_learns_the_rate_from_its_steps() -> None:
    """The second group, of two blocks and eight tokens, is swapped if a token takes long."""
    for token_s, swaps in ((0.4, False), (0.6, True)):
        capacity = Capacity(
            num_blocks=3, block_size=4, num_rows=4, num_swap_blocks=8, block_copy_s=1.2
        )
        config = SchedulerConfig(
            max_num_batched_tokens=64,
            max_model_len=64,
            prefix_cache=False,
            growth_blocks=0,
            prompt_share=1.0,
        )
        step_time = LinearStepTime(
            weights_s=0.0, token_s=token_s, context_token_s=0.0, step_s=0.0, sequence_s=0.0
        )
        engine = Engine(config, SimulatedExecutor(capacity, step_time))
        for request_id, prompt_len in ((1, 4), (2, 8)):
            sampling = SamplingParams(max_tokens=3, ignore_eos=True)
            prompt = int32([PROMPT_TOKEN] * prompt_len)
            engine.scheduler.add(Request(request_id=request_id, prompt=prompt, sampling=sampling))
        while (output := engine.step(0.0)) is not None:
            stats = output.stats
        assert (stats.num_swapped_out, stats.num_recomputed) == (int(swaps), int(not swaps))
