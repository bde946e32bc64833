"""How the layers of a model share the KV pool: in groups of equally many with one window each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from engine.integers import div_ceil

# a sequence has a block table for each group, and a step looks each of them up
_MOST_GROUPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGroups:
    """The groups of the layers of a model. A block of the pool belongs to one of them at a time.

    Attributes:
        windows: of each group the tokens that its layers attend to; 0 for all, such groups first.
        num_layers: of a group, and of a block of the pool; in the last group of a window some may
            be missing.
        places: of each layer of the model its group, and its place in the group's blocks.
    """

    windows: tuple[int, ...]
    num_layers: int
    places: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, windows: Sequence[int]) -> Self:
        """Group layers by their windows; 0 for none.

        A group is as large as the smallest kind of layers, so that nothing is missing in the group
        whose blocks are most, unless that makes too many groups.
        """
        counts = {window: windows.count(window) for window in sorted(set(windows))}
        num_layers = min(counts.values())
        while sum(div_ceil(count, num_layers) for count in counts.values()) > _MOST_GROUPS:
            num_layers += 1
        groups: list[int] = []
        first = {}
        for window, count in counts.items():
            first[window] = len(groups)
            groups += [window] * div_ceil(count, num_layers)
        seen = dict.fromkeys(counts, 0)
        places = []
        for window in windows:
            group, place = divmod(seen[window], num_layers)
            places.append((first[window] + group, place))
            seen[window] += 1
        return cls(windows=tuple(groups), num_layers=num_layers, places=tuple(places))

    @property
    def count(self) -> int:
        """Groups."""
        return len(self.windows)


def window_blocks(window: int, num_tokens: int, block_size: int) -> int:
    """Blocks that a group with a window holds at most while a step computes some tokens more."""
    # the window may begin within a block, and the tokens end within one
    return div_ceil(window + num_tokens, block_size) + 1


def longest_sequence(
    num_blocks: int, block_size: int, windows: Sequence[int], most_at_once: int
) -> int:
    """Tokens of the longest sequence that a pool holds.

    Groups without a window keep all of its blocks, the others what a window and a chunk need.

    Args:
        num_blocks: of the pool, each for all groups.
        windows: see `KVGroups`.
        most_at_once: tokens of a chunk.
    """
    num_left, num_growing = num_blocks * len(windows), len(windows)
    for window in sorted(filter(None, windows)):
        most = window_blocks(window, most_at_once, block_size)
        if num_left // num_growing <= most:
            break
        # from here on the group gives back as much as it gets
        num_left -= most
        num_growing -= 1
    return num_left // num_growing * block_size if num_growing else (1 << 31) - 1
