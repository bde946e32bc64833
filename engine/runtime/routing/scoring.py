"""Compares engine replicas for one request: where will its first token come soonest?

The measure is seconds: the prompt tokens that wait there before it and those of its own that the
replica has not cached, by the rate at which replicas compute prompts. A replica whose pool has no
room for the prompt comes behind all that have. Nothing here keeps state or knows of Ray.
"""

import hashlib
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from random import Random

from engine.core.memory.prefix_cache import PrefixChain
from engine.core.memory.prefix_marks import MARK_BYTES, is_marked, marked_every
from engine.runtime.routing.replica_load import ReplicaLoad
from engine.types import IntColumn, Request

# replicas that are this close to the best one are as good: chance then keeps the ingresses, which
# all see the same reports, from sending everything to one of them
TOLERANCE_S = 0.02
# a session stays with its replica unless another one is this much sooner
SESSION_PATIENCE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLoad:
    """A replica's last report, and what it does not know yet.

    Attributes:
        marks: those of the report, as a set.
        sent_tokens: prompt tokens that this ingress has sent to it since.
    """

    load: ReplicaLoad
    marks: Set[bytes]
    sent_tokens: float = 0.0


def marks_of_prompt(prompt: IntColumn, salt: bytes, block_size: int) -> dict[bytes, int]:
    """The marks that a prompt can find, each with the tokens of the prefix that it stands for.

    Args:
        prompt: int32 token ids; the last one is always computed.
        salt: the tenant, see `Request.salt`.
    """
    every = marked_every(block_size)
    num_tokens = (len(prompt) - 1) // (every * block_size) * every * block_size
    links = PrefixChain.of_tenant(salt, block_size).extended(prompt[:num_tokens]).links
    return {
        link.key[:MARK_BYTES]: link.depth * block_size
        for link in links[every - 1 :: every]
        if is_marked(link.depth, every)
    }


def num_cached_tokens(marks: Mapping[bytes, int], known: KnownLoad) -> int:
    """Tokens of a prompt that a replica probably has cached, to the last mark in its summary.

    A mark in the middle may be missing where the summary has no room for all.
    """
    return max((marks[mark] for mark in marks.keys() & known.marks), default=0)


def common_rate(replicas: Iterable[KnownLoad]) -> float:
    """Prompt tokens per second, the mean of the replicas that have computed any; 0 if none has.

    They are copies of each other: the rate of one differs by what it happened to do.
    """
    rates = [known.load.tokens_per_s for known in replicas if known.load.tokens_per_s > 0]
    return sum(rates) / len(rates) if rates else 0.0


def rank(
    request: Request, replicas: Mapping[str, KnownLoad], random: Random
) -> list[tuple[str, int]]:
    """Order replicas for a request, best first.

    Args:
        replicas: by tag; all of one block size, at least one with a rate.
        random: chooses among replicas that are as good.

    Returns:
        (tag, tokens of the prompt that it will have to compute).
    """
    rate, marks = common_rate(replicas.values()), _marks(request, replicas)
    found = [
        _Score.of(tag, known, len(request.prompt) - num_cached_tokens(marks, known), rate)
        for tag, known in replicas.items()
    ]
    soonest_s = min(
        (score.seconds for score in found if score.has_room),
        default=min(score.seconds for score in found),
    )
    home = home_of(request.session, replicas)

    def order(score: _Score) -> tuple[bool, bool, float, float, float]:
        late_s = score.seconds - soonest_s
        return (
            not score.has_room,
            score.tag != home or late_s > SESSION_PATIENCE_S,
            0.0 if late_s <= TOLERANCE_S else late_s,
            # of two that are near, the emptier one decodes faster and preempts later
            round(score.kv_usage, 1),
            random.random(),
        )

    return [(score.tag, score.num_new) for score in sorted(found, key=order)]


@dataclass(frozen=True, slots=True)
class _Score:
    """Attributes: num_new: tokens to compute; seconds: until they are."""

    tag: str
    num_new: int
    seconds: float
    has_room: bool
    kv_usage: float

    @classmethod
    def of(cls, tag: str, known: KnownLoad, num_new: int, tokens_per_s: float) -> "_Score":
        load = known.load
        num_before = load.waiting_tokens + known.sent_tokens
        return cls(
            tag=tag,
            num_new=num_new,
            seconds=(num_before + num_new) / tokens_per_s,
            has_room=num_before + num_new <= load.free_tokens,
            kv_usage=load.kv_usage(num_before),
        )


def home_of(session: bytes, replicas: Mapping[str, object]) -> str | None:
    """The replica of a session: the same for every ingress, and few move when replicas do."""
    if not session:
        return None
    return max(replicas, key=lambda tag: hashlib.sha256(session + tag.encode()).digest())


def _marks(request: Request, replicas: Mapping[str, KnownLoad]) -> dict[bytes, int]:
    if not request.sampling.may_read_cache or not any(known.marks for known in replicas.values()):
        return {}
    block_size = next(iter(replicas.values())).load.block_size
    return marks_of_prompt(request.prompt, request.salt, block_size)
