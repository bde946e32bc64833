"""Layers are grouped by their windows, in groups of one size."""

import pytest

from engine.config import KVGroups, longest_sequence, window_blocks


@pytest.mark.parametrize(
    ("windows", "groups", "num_layers"),
    [
        ([0] * 5, (0,), 5),
        ([512] * 5, (512,), 5),
        # Gemma 3 27B, gpt-oss, Gemma 2 and OLMo 3 7B
        (([1024] * 5 + [0]) * 10 + [1024] * 2, (0, *[1024] * 6), 10),
        ([128, 0] * 12, (0, 128), 12),
        ([0] * 13 + [4096] * 13, (0, 4096), 13),
        (([4096] * 3 + [0]) * 8, (0, 4096, 4096, 4096), 8),
        # one of its kind: not a group for every layer
        ([0] + [16] * 31, (0, *[16] * 7), 5),
        ([3, 9, 0, 3, 9, 0], (0, 3, 9), 2),
    ],
)
def test_groups(windows: list[int], groups: tuple[int, ...], num_layers: int) -> None:
    grouped = KVGroups.of(windows)
    assert (grouped.windows, grouped.num_layers) == (groups, num_layers)
    assert grouped.count == len(groups)
    assert len(set(grouped.places)) == len(windows)
    for window, (group, place) in zip(windows, grouped.places, strict=True):
        assert grouped.windows[group] == window
        assert place < num_layers


@pytest.mark.parametrize(
    ("windows", "longest"),
    [
        ((0,), 10 * 4),
        ((0, 0), 10 * 4),
        # 20 blocks, of which a window of 6 and a chunk of 4 take ceil(10 / 4) + 1
        ((0, 6), 16 * 4),
        ((0, 6, 6, 6), (40 - 3 * 4) * 4),
        # nothing is left of such a window: all groups hold all
        ((0, 100), 10 * 4),
        # nor of the larger one here, while the other ends at 4 blocks
        ((0, 6, 100), (30 - 4) // 2 * 4),
        ((6,), (1 << 31) - 1),
    ],
)
def test_windows_leave_room_for_longer_sequences(windows: tuple[int, ...], longest: int) -> None:
    assert window_blocks(6, 4, 4) == 4
    assert longest_sequence(10, 4, windows, 4) == longest
