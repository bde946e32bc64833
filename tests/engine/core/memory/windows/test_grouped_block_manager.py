"""What models with windows find again, and what they hold: in whole runs of the core."""

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from engine.config import SchedulerConfig, window_blocks
from engine.core.memory.headroom import NO_HEADROOM
from engine.core.memory.windows.grouped_block_manager import GroupedBlockManager
from engine.core.scheduling.grouping import make_group
from engine.types import Capacity, Request, SamplingParams, int32
from tests.engine.core.harness.checked_engine import CheckedEngine
from tests.engine.core.harness.expectations import Setting
from tests.engine.core.harness.groups import group_of

SIZE, WINDOW = 8, 32


def make_engine(
    windows: tuple[int, ...], num_blocks: int, *, max_model_len: int, budget: int = 256
) -> CheckedEngine:
    """An engine whose pool holds so many blocks of all groups, without windows."""
    capacity = Capacity(
        num_blocks=num_blocks * len(windows) + 1, block_size=SIZE, num_rows=16, windows=windows
    )
    config = SchedulerConfig(
        max_num_batched_tokens=budget, max_model_len=max_model_len, prompt_share=1.0
    )
    return CheckedEngine(Setting(capacity=capacity, config=config, run_ahead=2))


def tokens(rng: Random, count: int) -> list[int]:
    return [rng.randrange(40) for _ in range(count)]


def num_used(checked: CheckedEngine) -> int:
    usage = checked.stats.usage
    return (usage.filled + usage.internal) // SIZE


@pytest.mark.parametrize("num_windowed", [1, 6])
def test_blocks_left_of_windows_are_released(num_windowed: int) -> None:
    checked = make_engine((0, *[WINDOW] * num_windowed), 50, max_model_len=400)
    checked.add(tokens(Random(1), 300), checked.sampling(30, ignore_eos=True))
    most, length = 0, 0
    while checked.engine.has_work:
        checked.step()
        if checked.answers[0][0].tokens:
            length = 300 + len(checked.answers[0][0].tokens)
            most = max(most, num_used(checked))
    assert length == 330
    # a window may begin within a block, and up to one block is planned ahead of results
    assert most <= 330 // SIZE + 1 + num_windowed * (WINDOW // SIZE + 2)


def test_at_16k_tokens_windows_hold_windows() -> None:
    windows, budget, length = (0, *[1024] * 6), 2048, 16384
    # what full layers, windows and a chunk take, in whole blocks of all groups, and `nothing`
    num_whole = (length // 16 + 1 + 6 * window_blocks(1024, budget, 16)) // 7 + 1
    num_blocks = 7 * num_whole + 1
    capacity = Capacity(num_blocks=num_blocks, block_size=16, num_rows=1, windows=windows)
    config = SchedulerConfig(max_num_batched_tokens=budget, max_model_len=2 * length)
    request = Request(
        request_id=0, prompt=int32([1, 2] * (length // 2)), sampling=SamplingParams(max_tokens=2)
    )
    group = make_group(request, 0, config, capacity)
    [sequence] = group.sequences
    sequence.prefill_end = length
    headroom = replace(NO_HEADROOM, most_at_once=budget)
    manager = GroupedBlockManager(num_blocks, 16, windows, headroom=headroom)
    assert manager.can_allocate(group)
    manager.allocate(group)
    while sequence.is_prefilling:
        count = min(budget, length - sequence.num_scheduled)
        assert manager.num_extendable(sequence, count) == count
        manager.extend(sequence, count)
        sequence.num_scheduled += count
        manager.mark_computed(sequence)
        manager.finish_plan()
    manager.append(sequence.sequence_id)
    usage = manager.usage()
    assert usage.filled + usage.internal <= 1.15 * (length + 6 * 1024)


def converse(checked: CheckedEngine, num_turns: int, turn_len: int) -> float:
    """Eight chats that take turns; the share of what each has said before that is found again."""
    rng = Random(3)
    said = [tokens(rng, turn_len) for _ in range(8)]
    lengths = [0] * 8
    found = 0
    for number in range(8 * num_turns):
        chat = number % 8
        before = checked.stats.num_cached_tokens
        request_id = checked.add(said[chat], checked.sampling(12, ignore_eos=True))
        assert request_id is not None
        checked.drain()
        found += checked.stats.num_cached_tokens - before
        said[chat] += checked.answers[request_id][0].tokens
        if number < 8 * (num_turns - 1):
            # all but the last token, whose keys nobody has computed, in whole blocks
            lengths[chat] += (len(said[chat]) - 1) // SIZE * SIZE
            said[chat] += tokens(rng, turn_len // 4)
    return found / sum(lengths)


# of the pool, that all blocks fill which are needed to go on with any of the chats
@pytest.mark.parametrize("occupancy", [0.25, 0.75])
@pytest.mark.parametrize("windows", [(0, WINDOW), (0, WINDOW, WINDOW, WINDOW)])
def test_chats_in_turn_are_found_again(windows: tuple[int, ...], occupancy: float) -> None:
    per_chat = (80 + 3 * 32) // SIZE + 1 + (len(windows) - 1) * (WINDOW // SIZE + 1)
    num_blocks = int(8 * per_chat / occupancy / len(windows))
    checked = make_engine(windows, num_blocks, max_model_len=256)
    assert converse(checked, 4, 80) >= 0.95


@pytest.mark.parametrize("shared", [8, 32, 80])
def test_a_short_prefix_that_prompts_share_is_found(shared: int) -> None:
    checked = make_engine((0, WINDOW, WINDOW), 120, max_model_len=256)
    rng = Random(5)
    system = tokens(rng, shared)
    found = []
    for _ in range(4):
        before = checked.stats.num_cached_tokens
        checked.add([*system, *tokens(rng, 120)], checked.sampling(4, ignore_eos=True))
        checked.drain()
        found.append(checked.stats.num_cached_tokens - before)
    assert found == [0, *[shared] * 3]


def test_where_prompts_part_is_kept_longer_than_what_is_between() -> None:
    # the window before the end of a prefix that was found is as recent as the rest of the prefix;
    # that in the middle of a prompt goes first
    checked = make_engine((0, WINDOW), 38, max_model_len=256)
    rng = Random(7)
    system = tokens(rng, 80)
    found = []
    for number in range(5):
        before = checked.stats.num_cached_tokens
        checked.add([*system, *tokens(rng, 100)], checked.sampling(4, ignore_eos=True))
        checked.drain()
        found.append(checked.stats.num_cached_tokens - before)
        if number:
            checked.add(tokens(rng, 160), checked.sampling(4, ignore_eos=True))
            checked.drain()
    assert found == [0, *[80] * 4]


def test_what_follows_a_spoiled_block_is_spoiled_in_all_groups() -> None:
    manager = GroupedBlockManager(31, 2, (0, 3, 5))
    prompts = list(range(8)), list(range(50, 56))
    first, second = (group_of(prompt, first_id=i) for i, prompt in enumerate(prompts))
    for group in (first, second):
        manager.allocate(group)
        [sequence] = group.sequences
        sequence.num_scheduled = sequence.num_known
        manager.mark_computed(sequence)
        manager.finish_plan()
    table = manager.block_table(0)
    assert table[1] == 0
    blocks = {table[3 * 2 + 1]}
    assert manager.spoil(blocks) == {0}
    assert blocks == {*table[3 * 2 :]} - {0}
    for group in (first, second):
        manager.free(group.sequences[0].sequence_id)
    # two blocks are sound, and the last token is computed again
    for number, prompt in enumerate(prompts, start=2):
        assert manager.allocate(group_of(prompt, first_id=number))[0].num_cached == 4


# those that workloads do not see
RULES: list[Callable[[], None]] = [
    lambda: test_blocks_left_of_windows_are_released(1),
    lambda: test_chats_in_turn_are_found_again((0, WINDOW), 0.75),
    lambda: test_a_short_prefix_that_prompts_share_is_found(32),
    test_where_prompts_part_is_kept_longer_than_what_is_between,
    test_what_follows_a_spoiled_block_is_spoiled_in_all_groups,
]
