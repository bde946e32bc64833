"""What an engine replica reports for routing, as the values that Serve carries to the ingresses."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """How busy a replica is, and what its prefix cache holds.

    Attributes:
        report: counts the reports of the replica, so that a repeated one can be recognised.
        waiting_tokens: prompt tokens that are still to be computed for requests without output.
        tokens_per_s: prompt tokens that are computed per second while requests wait; 0 when no
            prompt has been computed yet.
        num_waiting: requests that are not in the batch.
        total_tokens: slots of the KV pool but those of pinned prefixes.
        free_tokens: those of them that are free or hold unused blocks.
        block_size: tokens per block.
        is_unready: whether its processes are being started again: it refuses what comes.
        marks: summary of the prefix cache, see `engine.core.memory.prefix_marks`.
    """

    report: int = 0
    waiting_tokens: float = 0.0
    tokens_per_s: float = 0.0
    num_waiting: int = 0
    total_tokens: int = 1
    free_tokens: int = 1
    block_size: int = 1
    is_unready: bool = False
    marks: bytes = b""

    def kv_usage(self, sent_tokens: float = 0.0) -> float:
        """Share of the slots that is in use, or will be once these tokens have come, too."""
        return 1.0 - (self.free_tokens - sent_tokens) / self.total_tokens

    def to_stats(self) -> dict[str, Any]:
        """The values by name."""
        return asdict(self)

    @classmethod
    def of_stats(cls, stats: Mapping[str, Any]) -> Self | None:
        """Read what `to_stats` wrote; None when the replica has not reported yet."""
        return cls(**stats) if stats else None
