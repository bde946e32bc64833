"""On which terms a request waits for its place in the batch."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Who pays for a request, and how long and before whom it waits; set by the ingress.

    Attributes:
        account: whose request it is, the digest of an API key; empty where none is needed.
        weight: of the account, for the queue policy `fair`.
        queue_share: share of the queue that waiting requests of the account may take.
        priority: for the queue policy `priority`, lower goes first; 64-bit.
        max_wait_s: seconds that it may wait until it first enters the batch.
    """

    account: bytes = b""
    weight: float = 1.0
    queue_share: float = 1.0
    priority: int = 0
    max_wait_s: float = math.inf


# those of who pays for nothing and waits for as long as it takes
ORDINARY_TERMS = Terms()
