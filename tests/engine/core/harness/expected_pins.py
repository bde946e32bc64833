"""What must be pinned: a set of prefixes of tokens, counted by the block."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from engine.types import PinnedPrefix, Request, int32

Key = tuple[bytes, str]


@dataclass(slots=True)
class _Pin:
    tokens: tuple[int, ...]
    computed_by: int | None
    is_warm: bool = False
    expires_s: float = inf


class ExpectedPins:
    """Attributes: pins: by tenant and name."""

    def __init__(self, block_size: int, budget_blocks: int) -> None:
        self.pins: dict[Key, _Pin] = {}
        self._block_size = block_size
        self._budget_blocks = budget_blocks

    def accepts(self, request: Request) -> bool:
        """Whether the prefix of a request may be pinned, apart from what the request needs."""
        tokens, pin = self._full_blocks(request), self.pins.get(_key(request))
        if pin is not None:
            return pin.tokens == tokens and pin.computed_by is None
        held = self._blocks((key[0], pin.tokens) for key, pin in self.pins.items())
        held |= self._blocks([(request.salt, tokens)])
        return bool(tokens) and len(held) <= self._budget_blocks

    def reserve(self, request: Request) -> None:
        pin = self.pins.setdefault(_key(request), _Pin(self._full_blocks(request), None))
        pin.computed_by = request.request_id

    def settle(self, request: Request, now_s: float, *, is_computed: bool) -> None:
        """Note the end of a request that was to compute a prefix."""
        pin = self.pins.get(_key(request))
        if pin is None or pin.computed_by != request.request_id:
            return
        pin.computed_by = None
        if is_computed:
            assert request.pin is not None
            ttl_s = request.pin.ttl_s
            pin.is_warm, pin.expires_s = True, inf if ttl_s is None else now_s + ttl_s
        elif not pin.is_warm:
            del self.pins[_key(request)]

    def expire(self, now_s: float) -> None:
        for key, pin in list(self.pins.items()):
            if pin.expires_s <= now_s:
                pin.is_warm, pin.expires_s = False, inf
                if pin.computed_by is None:
                    del self.pins[key]

    @property
    def num_warm_blocks(self) -> int:
        """Distinct blocks of all prefixes that are computed."""
        return len(
            self._blocks((key[0], pin.tokens) for key, pin in self.pins.items() if pin.is_warm)
        )

    def check(self, reported: tuple[PinnedPrefix, ...]) -> None:
        """Compare with what the engine reports."""
        size = self._block_size
        expected = [
            PinnedPrefix(
                salt=salt,
                name=name,
                tokens=int32(pin.tokens),
                num_blocks=len(pin.tokens) // size,
                is_warm=pin.is_warm,
                expires_s=None if pin.expires_s == inf else pin.expires_s,
            )
            for (salt, name), pin in self.pins.items()
        ]
        assert sorted(reported, key=repr) == sorted(expected, key=repr)

    def _full_blocks(self, request: Request) -> tuple[int, ...]:
        num_tokens = len(request.prompt) // self._block_size * self._block_size
        return tuple(request.prompt[:num_tokens])

    def _blocks(
        self, prefixes: Iterable[tuple[bytes, tuple[int, ...]]]
    ) -> set[tuple[bytes, tuple[int, ...]]]:
        return {
            (salt, tokens[:end])
            for salt, tokens in prefixes
            for end in range(self._block_size, len(tokens) + 1, self._block_size)
        }


def _key(request: Request) -> Key:
    assert request.pin is not None
    return request.salt, request.pin.name
