"""The pinned prefixes of a replica, also while its gang is lost and they are pinned again."""

from collections.abc import Sequence
from dataclasses import replace

from engine.types import PinnedPrefix


class HeldPins:
    """What the scheduler has reported last, and what a lost one held and the new one does not yet.

    `lose`, the reports of a new scheduler, `settle`: in this order.
    """

    def __init__(self) -> None:
        self._reported: tuple[PinnedPrefix, ...] = ()
        self._missing: dict[tuple[bytes, str], PinnedPrefix] = {}

    @property
    def missing(self) -> Sequence[PinnedPrefix]:
        """What is still to be pinned again, expired or not."""
        held = {_key(prefix) for prefix in self._reported}
        return [prefix for key, prefix in self._missing.items() if key not in held]

    @property
    def listed(self) -> Sequence[PinnedPrefix]:
        """All prefixes; those that are missing are not warm."""
        return [*self._reported, *self.missing]

    def report(self, pinned: tuple[PinnedPrefix, ...]) -> None:
        """Take in what a scheduler has pinned, all of it."""
        self._reported = pinned

    def release(self, salt: bytes, name: str) -> None:
        """Forget a missing prefix; what a scheduler has, it releases itself."""
        self._missing.pop((salt, name), None)

    def lose(self) -> None:
        """Note that the scheduler, with all that it had, is gone."""
        self._missing |= {_key(prefix): replace(prefix, is_warm=False) for prefix in self._reported}
        self._reported = ()

    def settle(self) -> None:
        """Note that what could be pinned again is pinned."""
        self._missing.clear()


def _key(prefix: PinnedPrefix) -> tuple[bytes, str]:
    return prefix.salt, prefix.name
