"""Prompts that take several steps: blocks on demand, and larger chunks while nobody waits."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random

import pytest

from engine.config import SchedulerConfig
from engine.core.memory.headroom import NO_HEADROOM
from engine.core.memory.paged_block_manager import PagedBlockManager
from engine.core.sequence_group import Status
from engine.types import Capacity, StepPlan
from tests.engine.core.harness.checked_engine import CheckedEngine
from tests.engine.core.harness.expectations import Setting
from tests.engine.core.harness.workload import RECOMPUTE, SWAP, MixedPreemption, draw_sampling

SIZE = 4


def make_setting(num_blocks: int, budget: int, **options: object) -> Setting:
    config = SchedulerConfig(
        max_num_batched_tokens=budget,
        max_model_len=400,
        **({"prompt_share": 1.0} | options),  # type: ignore[arg-type]
    )
    return Setting(
        capacity=Capacity(num_blocks=num_blocks, block_size=SIZE, num_rows=8), config=config
    )


def tokens(seed: int, count: int) -> list[int]:
    rng = Random(seed)
    return [rng.randrange(40) for _ in range(count)]


def num_prefilling(checked: CheckedEngine) -> int:
    running = checked.engine.scheduler._queues.running
    return sum(group.is_prefilling for group in running)


def num_blocks_of(checked: CheckedEngine, sequence_id: int) -> int:
    return len(checked._block_manager.block_table(sequence_id))


def test_a_long_prompt_enters_when_its_first_chunk_fits_and_takes_blocks_by_chunks() -> None:
    checked = CheckedEngine(make_setting(20, 8))
    checked.add(tokens(1, 8), checked.sampling(40, ignore_eos=True))
    for _ in range(20):
        checked.step()
    # the pool has no room for all of it beside the first one at its longest
    checked.add(tokens(2, 56), checked.sampling(1, ignore_eos=True))
    checked.step()
    assert checked.stats.num_running == 2
    assert num_blocks_of(checked, 1) == 2
    checked.step()
    # one token decodes in each step, so that 14 are there
    assert num_blocks_of(checked, 1) == 4
    checked.drain()


def test_what_a_prompt_has_still_to_get_is_not_for_later_ones() -> None:
    # the first one takes 15 blocks; one is not enough to begin with, nor are 5 for all of 10
    for num_blocks, num_running in ((16, 1), (20, 2)):
        checked = CheckedEngine(make_setting(num_blocks, 8, prompt_share=0.5))
        checked.add(tokens(1, 60), checked.sampling(1, ignore_eos=True))
        checked.step()
        checked.add(tokens(2, 40), checked.sampling(1, ignore_eos=True))
        most = 0
        while not checked.answers[0][0].tokens:
            checked.step()
            most = max(most, checked.stats.num_running)
        checked.drain()
        assert most == num_running
        assert checked.stats.num_recomputed == 0


def test_a_prompt_that_runs_out_of_blocks_takes_them_from_the_latest() -> None:
    setting = make_setting(16, 6, prompt_share=0.5)
    checked = CheckedEngine(setting, _Generous(16, SIZE, headroom=_ENTRY))
    checked.add(tokens(1, 48), checked.sampling(1, ignore_eos=True))
    checked.step()
    checked.add(tokens(2, 40), checked.sampling(1, ignore_eos=True))
    checked.drain()
    assert checked.stats.num_recomputed == 1
    # the head of the second is still there when it comes back
    assert checked.stats.num_cached_tokens > 0


def test_the_latest_prompt_waits_with_what_it_has() -> None:
    checked = CheckedEngine(make_setting(16, 16))
    # 9 blocks, all that it ever needs, and 7 of 12 for the other one
    checked.add(tokens(1, 33), checked.sampling(4, ignore_eos=True))
    while not checked.answers[0][0].tokens:
        checked.step()
    checked.add(tokens(2, 48), checked.sampling(1, ignore_eos=True))
    chunks = []
    while checked.engine.has_work:
        checked.step()
        chunks.append(list(checked.executor.last_plan.prefill_counts))
    assert chunks == [[15], [13], [], [16], [4]]
    assert checked.stats.num_recomputed == 0


def test_prompts_longer_than_the_pool_are_served_where_windows_leave_room() -> None:
    for windows in ((6,), (0, 6, 6, 6)):
        setting = make_setting(12, 8)
        capacity = replace(setting.capacity, num_blocks=12 * len(windows) + 1, windows=windows)
        checked = CheckedEngine(replace(setting, capacity=capacity, run_ahead=2))
        # four windows hold a block and a chunk more each, and the others are for all tokens
        length = 300 if windows == (6,) else 100
        assert length > capacity.num_whole_blocks * SIZE
        assert checked.add(tokens(1, length), checked.sampling(9, ignore_eos=True)) is not None
        assert checked.add(tokens(2, 30), checked.sampling(9, ignore_eos=True)) is not None
        checked.drain()


def test_a_lone_prompt_has_larger_chunks() -> None:
    checked = CheckedEngine(make_setting(60, 8, lone_prompt_tokens=32))
    counts: list[tuple[int, ...]] = []

    def look(_: CheckedEngine) -> None:
        plan: StepPlan = checked.executor.last_plan
        counts.append(tuple(plan.prefill_counts))

    checked.look = look
    checked.add(tokens(1, 70), checked.sampling(1, ignore_eos=True))
    checked.drain()
    assert counts == [(32,), (32,), (6,)]
    counts.clear()
    checked.add(tokens(2, 70), checked.sampling(3, ignore_eos=True))
    checked.step()
    checked.add(tokens(3, 20), checked.sampling(1, ignore_eos=True))
    checked.drain()
    assert counts[0] == (32,)
    assert max(map(sum, counts[1:])) == 8


class _Generous(PagedBlockManager):
    """Lets prompts enter as if those before them needed no more blocks."""

    def _num_owed(self, sequence_ids: Iterable[int]) -> int:
        return 0


_ENTRY = replace(NO_HEADROOM, most_at_once=6)


def run_long(seed: int, *, is_generous: bool) -> Counter[str]:
    """Prompts of up to the whole pool in steps of a few tokens; all of them must end."""
    rng = Random(seed)
    size, num_blocks = rng.choice((1, 2, 4)), rng.randint(6, 20)
    capacity = Capacity(
        num_blocks=num_blocks,
        block_size=size,
        num_rows=rng.randint(2, 6),
        num_swap_blocks=rng.choice((0, 2 * num_blocks)),
    )
    config = SchedulerConfig(
        max_num_batched_tokens=rng.randint(2, 9),
        max_model_len=96,
        prompt_share=rng.choice((0.4, 1.0)),
        lone_prompt_tokens=rng.choice((0, 16)),
        max_overtakes=0,
    )
    setting = Setting(
        capacity=capacity,
        config=config,
        run_ahead=rng.randint(1, 3),
        preemption=rng.choice((RECOMPUTE, SWAP, MixedPreemption(seed))),
        prefix_cache=rng.random() < 0.5,
    )
    headroom = replace(
        NO_HEADROOM,
        watermark=rng.choice((0.0, 0.1)),
        growth_blocks=rng.choice((0.0, 1.0)),
        most_at_once=config.max_step_tokens,
    )
    kind = _Generous if is_generous else PagedBlockManager
    manager = kind(
        num_blocks,
        size,
        num_swap_blocks=capacity.num_swap_blocks,
        headroom=headroom,
        prefix_cache=setting.prefix_cache,
    )
    checked = CheckedEngine(setting, manager)
    seen: Counter[str] = Counter()
    queues = checked.engine.scheduler._queues
    half_done: set[int] = set()

    def look(_: CheckedEngine) -> None:
        seen["several half done"] += num_prefilling(checked) > 1
        left = {group for group in queues.waiting if id(group) in half_done}
        seen["preempted half done"] += len(left)
        half_done.clear()
        half_done.update(id(group) for group in queues.running if group.is_prefilling)

    checked.look = look
    for _ in range(12):
        prompt_len = rng.randint(1, num_blocks * size)
        prompt = tokens(rng.randint(0, 5), prompt_len)
        checked.add(prompt, draw_sampling(rng, checked, prompt_len))
        for _ in range(rng.randint(0, 4)):
            checked.step()
    checked.drain()
    assert not any(group.status is Status.RUNNING for group in queues.running)
    return seen


@pytest.mark.parametrize("is_generous", [False, True])
def test_prompts_that_outgrow_the_pool_together_all_end(is_generous: bool) -> None:
    seen: Counter[str] = Counter()
    for seed in range(60):
        seen += run_long(seed, is_generous=is_generous)
    assert seen["several half done"] > 100
    assert seen["preempted half done"] > 5


# of which workloads see little: who waits, and who is preempted
RULES: list[Callable[[], None]] = [
    test_what_a_prompt_has_still_to_get_is_not_for_later_ones,
    test_a_prompt_that_runs_out_of_blocks_takes_them_from_the_latest,
    test_the_latest_prompt_waits_with_what_it_has,
]
