"""What becomes of preempted groups: swapped or recomputed, overtaken, with the same answers."""

from dataclasses import replace
from random import Random

import pytest

from engine.config import SchedulerConfig
from engine.core.memory.paged_block_manager import PagedBlockManager
from engine.core.scheduling.preemption import Preemption
from engine.types import Capacity, FinishReason, SamplingParams
from tests.engine.core.harness.checked_engine import CheckedEngine, count_preemptions
from tests.engine.core.harness.expectations import Setting
from tests.engine.core.harness.groups import group_of
from tests.engine.core.harness.scheduler_driver import SchedulerDriver
from tests.engine.core.harness.workload import RECOMPUTE, SWAP, MixedPreemption, run_workload


def preempt_second(num_swap_blocks: int) -> SchedulerDriver:
    """The first request needs a block and takes it from the second, which has two."""
    driver = SchedulerDriver(num_blocks=3, num_swap_blocks=num_swap_blocks)
    driver.add(1, prompt_len=4, max_tokens=3)
    driver.add(2, prompt_len=8, max_tokens=3)
    driver.step(1, 51)
    return driver


def test_a_group_is_swapped_out_and_back_as_a_whole() -> None:
    driver = preempt_second(num_swap_blocks=2)
    plan, output = driver.step()
    assert (list(plan.swap_out_sources), len(plan.decode_rows)) == ([1, 2], 0)
    assert (output.stats.num_swapped, output.stats.usage.swapped) == (1, 8)
    assert not plan.admissions
    driver.step(2)
    driver.step(3)
    plan, output = driver.step(52)
    assert list(plan.swap_in_sources) == list(range(2))
    assert list(plan.token_values) == [51]
    assert [admission.length for admission in plan.admissions] == [8]
    assert output.stats.usage.swapped == 0


@pytest.mark.parametrize("num_swap_blocks", [0, 1])
def test_without_room_in_the_swap_space_a_group_is_recomputed(num_swap_blocks: int) -> None:
    stats = preempt_second(num_swap_blocks).step()[1].stats
    assert (stats.num_recomputed, stats.num_swapped_out) == (1, 0)


def test_a_half_prefilled_group_is_recomputed() -> None:
    driver = SchedulerDriver(num_blocks=5, num_swap_blocks=8, budget=6)
    driver.add(1, prompt_len=4, max_tokens=9)
    driver.add(2, prompt_len=16, max_tokens=1)
    driver.step()
    stats = driver.step()[1].stats
    assert (stats.num_recomputed, stats.num_swapped_out) == (1, 0)


def test_no_new_group_enters_while_one_is_swapped_out() -> None:
    driver = preempt_second(num_swap_blocks=2)
    driver.add(3, prompt_len=1, max_tokens=1)
    for _ in range(3):
        plan, _ = driver.step()
        assert not plan.admissions
    plan, _ = driver.step()
    assert [admission.length for admission in plan.admissions] == [8]


def test_as_many_as_configured_overtake_a_swapped_group() -> None:
    driver = SchedulerDriver(num_blocks=4, num_swap_blocks=2, max_overtakes=2)
    driver.add(1, prompt_len=8, max_tokens=6)
    driver.add(2, prompt_len=8, max_tokens=3)
    driver.step(1, 51)
    driver.step()
    assert driver.step()[1].stats.num_swapped == 1
    for request_id in (3, 4, 5):
        driver.add(request_id, prompt_len=1, max_tokens=1)
    entered = []
    for _ in range(3):
        plan, output = driver.step()
        entered.append(len(plan.admissions))
        assert output.stats.num_swapped == 1
    assert sum(entered) == 2
    last = driver.finish_all()
    assert all(reason is FinishReason.LENGTH for _, reason in last.values())
    assert set(last) >= {1, 2, 5}


def test_overtaking_and_shares_change_no_answer() -> None:
    for seed in range(24):
        run_workload(seed, max_overtakes=3, prompt_share=0.4)


def test_siblings_that_come_back_wait_for_the_head_of_their_prompt() -> None:
    # of 150 workloads those in which a sibling could run ahead of what it shares
    for seed in (26, 104, 107, 137):
        run_workload(seed, may_pin=False, prompt_share=0.3)


def test_a_choice_aborted_while_it_is_recomputed_ends_once_its_sibling_can_do_without() -> None:
    """Its sibling reads blocks that it has yet to write; after that it takes no further token."""
    setting = Setting(
        capacity=Capacity(num_blocks=10, block_size=4, num_rows=4),
        config=SchedulerConfig(
            max_num_batched_tokens=8, max_model_len=40, prefix_cache=False, prompt_share=1.0
        ),
        preemption=RECOMPUTE,
        prefix_cache=False,
    )
    checked = CheckedEngine(setting)
    checked.add([1] * 4, checked.sampling(20, ignore_eos=True))
    preempted = checked.add([2] * 18, checked.sampling(10, n=2, ignore_eos=True))
    assert preempted is not None
    while not checked.stats.num_recomputed:
        checked.step()
    while not checked.executor.last_plan.prefill_rows:
        checked.step()
    # the first of several chunks of the first sibling; the other has a chunk of its own to follow
    assert not any(checked.executor.last_plan.prefill_samples)
    assert all(answer.tokens for answer in checked.answers[preempted])
    checked.abort_choice(preempted, 0)
    checked.drain()
    first, second = checked.answers[preempted]
    assert (first.reason, len(second.tokens)) == (FinishReason.ABORT, 10)


def test_a_beam_rewound_by_a_swap_decodes() -> None:
    group = group_of([1] * 4, (5,), (6,))
    for sequence in group.sequences:
        sequence.rewind()
        assert sequence.num_scheduled == 4
        assert not sequence.is_prefilling


# of one group
MOST_SEQUENCES = 3


class _OftenFullBlockManager(PagedBlockManager):
    """Says now and then that it is full, until blocks are freed."""

    def __init__(self, capacity: Capacity) -> None:
        super().__init__(
            capacity.num_blocks, capacity.block_size, num_swap_blocks=capacity.num_swap_blocks
        )
        self._rng = Random(0)
        self._claims_full = False

    def can_append(self, sequence_ids: list[int]) -> bool:
        # asked first for the whole batch; the last group is let go on
        if len(sequence_ids) > MOST_SEQUENCES and self._rng.random() < 0.9:
            self._claims_full = True
        return not self._claims_full and super().can_append(sequence_ids)

    def free(self, sequence_id: int) -> None:
        self._claims_full = False
        super().free(sequence_id)


@pytest.mark.parametrize("num_requests", [30, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("preemption", "run_ahead"),
    [(SWAP, 1), (RECOMPUTE, 2), (MixedPreemption(0), 2)],
    ids=["swap", "recompute", "mixed"],
)
def test_hundreds_of_preemptions_change_no_answer(
    preemption: Preemption, run_ahead: int, num_requests: int
) -> None:
    """One sequence, several or beams, five preemptions for each request and more."""
    capacity = Capacity(num_blocks=160, block_size=4, num_rows=24, num_swap_blocks=400)
    setting = Setting(
        capacity=capacity,
        config=SchedulerConfig(max_num_batched_tokens=64, max_model_len=96, prompt_share=1.0),
        preemption=preemption,
        run_ahead=run_ahead,
    )
    # room for all rows at their longest
    calm = CheckedEngine(replace(setting, capacity=replace(capacity, num_blocks=24 * 24)))
    forced = CheckedEngine(setting, _OftenFullBlockManager(capacity))
    for checked in (calm, forced):
        rng = Random(1)
        for _ in range(num_requests):
            prompt = [rng.randrange(17) for _ in range(rng.randint(1, 24))]
            checked.add(prompt, _any_sampling(rng, checked))
        checked.drain()
    assert len(forced.requests) == num_requests
    assert forced.answers == calm.answers
    assert count_preemptions(calm.stats) == 0
    by_kind = forced.stats.num_swapped_out, forced.stats.num_recomputed
    if preemption is SWAP:
        assert by_kind[0] >= 5 * num_requests
    elif preemption is RECOMPUTE:
        assert (by_kind[0], by_kind[1] >= 5 * num_requests) == (0, True)
    else:
        assert sum(by_kind) >= 5 * num_requests
        assert min(by_kind) >= 1.5 * num_requests


def test_a_spoiled_swap_space_costs_prefills_and_no_answer() -> None:
    num_spoiled = 0
    for seed in range(16):
        num_spoiled += _run_spoiled(seed).stats.num_spoiled
    assert num_spoiled > 100


def _run_spoiled(seed: int) -> CheckedEngine:
    """Prompts of three families come again and again; whatever is in the swap space may break."""
    rng = Random(seed)
    setting = Setting(
        capacity=Capacity(num_blocks=20, block_size=2, num_rows=8, num_swap_blocks=30),
        config=SchedulerConfig(max_num_batched_tokens=16, max_model_len=40, prompt_share=1.0),
        preemption=MixedPreemption(seed),
        run_ahead=1 + seed % 3,
    )
    checked = CheckedEngine(setting)
    for _ in range(40):
        family = rng.randrange(3)
        prompt = [family] * rng.randint(1, 16) + [
            rng.randrange(3) for _ in range(rng.randint(1, 2))
        ]
        width = rng.choice((0, 0, 2))
        n = 1 if width else rng.choice((1, 1, 2))
        salt = rng.choice((b"", b"", b"other tenant"))
        sampling = checked.sampling(rng.randint(1, 16), n=n, beam_width=width, ignore_eos=True)
        checked.add(prompt, sampling, salt)
        for _ in range(rng.randint(0, 6)):
            if rng.random() < 0.4:
                checked.executor.spoiled |= set(rng.sample(range(30), 8))
            if rng.random() < 0.05:
                checked.abort(rng.randrange(len(checked.requests)))
            checked.step()
    checked.drain()
    return checked


def _any_sampling(rng: Random, checked: CheckedEngine) -> SamplingParams:
    width = rng.choice((0, 0, 1, 3))
    n = rng.randint(1, max(1, width)) if width else rng.choice((1, 1, 3))
    return checked.sampling(rng.randint(24, 64), n=n, beam_width=width, ignore_eos=True)


def test_who_holds_only_a_copy_of_a_spoiled_block_is_recomputed() -> None:
    # of two siblings the one that had the block itself has ended when it is found spoiled
    run_workload(10_280, may_pin=False)
