"""Preemption: which way by cost, and the same answers whatever happens."""

from dataclasses import replace
from random import Random

import pytest

from engine.config import SchedulerConfig
from engine.core.paged_memory import PagedMemory
from engine.core.preemption import CheapestPreemption, Preemption
from engine.types import Capacity, SamplingParams
from tests.core.desk import Desk
from tests.core.expectations import Setting
from tests.core.groups import group_of
from tests.core.harness import Harness, count_preemptions
from tests.core.workload import RECOMPUTE, SWAP, MixedPreemption


@pytest.mark.parametrize(("block_copy_s", "swaps"), [(0.9, True), (1.1, False)])
def test_the_cheaper_way_is_chosen(block_copy_s: float, swaps: bool) -> None:
    # two blocks are copied out and in again, or four tokens prefilled
    preemption = CheapestPreemption(block_copy_s=block_copy_s, prefill_token_s=1.0)
    assert preemption.prefers_swap(group_of([1, 2, 3], (4,)), num_blocks=2) is swaps


@pytest.mark.parametrize(("block_copy_s", "swaps"), [(1.4, True), (1.6, False)])
def test_a_prompt_that_siblings_share_is_prefilled_once(block_copy_s: float, swaps: bool) -> None:
    preemption = CheapestPreemption(block_copy_s=block_copy_s, prefill_token_s=1.0)
    # 3 tokens of the prompt, 3 of output
    group = group_of([1, 2, 3], (4,), (5, 6))
    assert preemption.prefers_swap(group, num_blocks=2) is swaps


def preempt_second(num_swap_slots: int) -> Desk:
    """The first request needs a block and takes it from the second, which has two."""
    desk = Desk(num_blocks=3, num_swap_slots=num_swap_slots)
    desk.add(1, prompt_len=4, max_tokens=3)
    desk.add(2, prompt_len=8, max_tokens=3)
    desk.step(1, 51)
    return desk


def test_a_group_is_swapped_out_and_back_as_a_whole() -> None:
    desk = preempt_second(num_swap_slots=2)
    plan, output = desk.step()
    assert (list(plan.swap_out_blocks), len(plan.decode_rows)) == ([1, 2], 0)
    assert (output.stats.num_swapped, output.stats.usage.swapped) == (1, 8)
    assert not plan.admissions
    desk.step(2)
    desk.step(3)
    plan, output = desk.step(52)
    assert list(plan.swap_in_slots) == list(range(2))
    assert list(plan.token_values) == [51]
    assert [admission.length for admission in plan.admissions] == [8]
    assert output.stats.usage.swapped == 0


@pytest.mark.parametrize("num_swap_slots", [0, 1])
def test_without_room_in_the_swap_space_a_group_is_recomputed(num_swap_slots: int) -> None:
    stats = preempt_second(num_swap_slots).step()[1].stats
    assert (stats.num_recomputed, stats.num_swapped_out) == (1, 0)


def test_a_half_prefilled_group_is_recomputed() -> None:
    desk = Desk(num_blocks=5, num_swap_slots=8, budget=6)
    desk.add(1, prompt_len=4, max_tokens=9)
    desk.add(2, prompt_len=16, max_tokens=1)
    desk.step()
    stats = desk.step()[1].stats
    assert (stats.num_recomputed, stats.num_swapped_out) == (1, 0)


def test_nobody_new_enters_while_a_group_is_swapped_out() -> None:
    desk = preempt_second(num_swap_slots=2)
    desk.add(3, prompt_len=1, max_tokens=1)
    for _ in range(3):
        plan, _ = desk.step()
        assert not plan.admissions
    plan, _ = desk.step()
    assert [admission.length for admission in plan.admissions] == [8]


def test_a_beam_rewound_by_a_swap_decodes() -> None:
    group = group_of([1] * 4, (5,), (6,))
    for sequence in group.sequences:
        sequence.rewind()
        assert sequence.num_scheduled == 4
        assert not sequence.is_prefilling


# of one group
MOST_SEQUENCES = 3


class _ForcedMemory(PagedMemory):
    """Says now and then that it is full, until somebody has given something back."""

    def __init__(self, capacity: Capacity) -> None:
        super().__init__(
            capacity.num_blocks, capacity.block_size, num_swap_slots=capacity.num_swap_slots
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


@pytest.mark.parametrize(
    ("preemption", "run_ahead"),
    [(SWAP, 1), (RECOMPUTE, 2), (MixedPreemption(0), 2)],
    ids=["swap", "recompute", "mixed"],
)
def test_a_thousand_preemptions_change_no_answer(preemption: Preemption, run_ahead: int) -> None:
    capacity = Capacity(num_blocks=160, block_size=4, num_rows=24, num_swap_slots=400)
    quiet = Setting(
        capacity=capacity,
        config=SchedulerConfig(max_num_batched_tokens=64, max_model_len=60, eos_token_ids=(3,)),
        run_ahead=run_ahead,
    )
    calm = Harness(quiet)
    forced = Harness(
        replace(quiet, preemption=preemption),
        _ForcedMemory(capacity),
    )
    for harness in (calm, forced):
        rng = Random(1)
        for _ in range(1000):
            prompt = [rng.randrange(17) for _ in range(rng.randint(1, 24))]
            harness.add(prompt, _any_sampling(rng, harness))
        harness.drain()
    assert len(forced.requests) == 1000
    assert forced.answers == calm.answers
    assert count_preemptions(calm.stats) < 100
    assert count_preemptions(forced.stats) >= 1000


def _any_sampling(rng: Random, harness: Harness) -> SamplingParams:
    width = rng.choice((0, 0, 1, 3))
    n = rng.randint(1, max(1, width)) if width else rng.choice((1, 1, 3))
    return harness.sampling(rng.randint(4, 24), n=n, beam_width=width, ignore_eos=True)
