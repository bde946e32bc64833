"""What models with windows find again, and what they hold: in whole runs of the core."""

from random import Random

import pytest

from engine.config import SchedulerConfig
from engine.types import Capacity
from tests.engine.core.harness.checked_engine import CheckedEngine
from tests.engine.core.harness.expectations import Setting

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
    # the windows of a prefix that was found are as recent as its other blocks; those of a prompt's
    # middle go first
    checked = make_engine((0, WINDOW), 34, max_model_len=256)
    rng = Random(7)
    system = tokens(rng, 80)
    found = []
    for _ in range(6):
        before = checked.stats.num_cached_tokens
        checked.add([*system, *tokens(rng, 100)], checked.sampling(4, ignore_eos=True))
        checked.drain()
        found.append(checked.stats.num_cached_tokens - before)
    assert found[2:] == [80] * 4
