"""What the client asks of the way to the engine replicas."""

from collections.abc import AsyncIterator
from typing import Protocol

from engine.types import ALL_CHOICES


class EngineHandle(Protocol):
    """How calls reach the engine replicas. Each raises EngineError when a replica is gone."""

    async def replicas(self) -> list[str]:
        """Tags of the replicas that run."""
        ...

    async def submit(
        self, client: int, request: bytes, replica: str | None = None, *, avoid: str | None = None
    ) -> bytes:
        """Send an encoded `Request` to a replica; returns an encoded `Verdict`.

        Args:
            replica: tag; None leaves the choice to the handle.
            avoid: tag of a replica that is chosen only if there is no other.
        """
        ...

    async def abort(
        self, replica: str, request_ids: tuple[int, ...], choice: int = ALL_CHOICES
    ) -> None:
        """End requests of one replica, or one choice of each."""
        ...

    async def renew(self, replica: str, client: int, received_bytes: int) -> None:
        """Report to one replica that this client lives and how much of its stream it has read."""
        ...

    def attach(self, replica: str, client: int) -> AsyncIterator[bytes]:
        """Stream the outputs of this client's requests from one replica, see `decode_batch`.

        The one that is attached last gets them.
        """
        ...

    async def release_prefix(self, salt: bytes, name: str) -> None:
        """Release a pinned prefix on every replica."""
        ...

    async def prefixes(self, salt: bytes) -> list[bytes]:
        """List a tenant's pinned prefixes: one answer of each replica, encoded by `PREFIXES`."""
        ...

    async def is_ready(self) -> bool:
        """Whether a replica runs and makes steps."""
        ...

    async def max_model_len(self) -> int:
        """Longest prompt plus output in tokens that every replica serves."""
        ...
