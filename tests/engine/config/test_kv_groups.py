"""Layers are grouped by their windows, in groups of one size."""

import pytest

from engine.config import KVGroups


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
