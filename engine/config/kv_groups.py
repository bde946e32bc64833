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
