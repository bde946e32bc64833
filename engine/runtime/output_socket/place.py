"""Where a client is connected to a replica, and how both ends know each other there.

Both prove, by an HMAC, that they know a secret that is made for one stream. It is used once, so
that a proof which somebody has seen opens nothing. Neither end looks at anything before the other's
proof. What follows is not encrypted: nodes of a cluster share a network that no one else reads.

The client begins: the number of the stream, then its proof. The replica answers with its own. Then
come frames both ways: requests from the client, verdicts and outputs from the replica.
"""

import hmac
import secrets
from dataclasses import dataclass, field
from urllib.parse import urlsplit

# seconds after which an end is given up that has not come, not proven itself or not taken anything:
# as many as a busy client is forgiven (`FORGIVEN_S`); what is frozen or dead is found out by leases
PATIENCE_S = 30.0
# the same by TCP's own clock
SILENCE_S = 30
NUMBER_BYTES = 8
PROOF_BYTES = 32
HELLO_BYTES = NUMBER_BYTES + PROOF_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPlace:
    """Where one stream is to be fetched, once.

    Attributes:
        url: `tcp://host:port`.
        number: of the stream, among those of its replica.
        secret: of the replica and of whoever got this place from it.
    """

    url: str
    number: int
    secret: bytes = field(repr=False, default_factory=lambda: secrets.token_bytes(PROOF_BYTES))

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        url = urlsplit(self.url)
        assert url.hostname is not None, "the replica has made it"
        assert url.port is not None, "the replica has made it"
        return url.hostname, url.port

    @property
    def hello(self) -> bytes:
        """What the client sends first, and nothing else."""
        return self.number.to_bytes(NUMBER_BYTES, "little") + self._proof(b"client")

    @property
    def answer(self) -> bytes:
        """What the replica sends first."""
        return self._proof(b"replica")

    def _proof(self, role: bytes) -> bytes:
        return hmac.digest(self.secret, b"pagoda outputs " + role, "sha256")


def number_in(hello: bytes) -> int:
    """The stream that a client asks for."""
    return int.from_bytes(hello[:NUMBER_BYTES], "little")
