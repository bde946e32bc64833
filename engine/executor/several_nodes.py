"""What a gang needs beside the rest where its ranks may run on other nodes than the replica.

Ranks meet at a port of rank 0's node instead of a file. A rank on the replica's node, which is the
scheduler's too, listens on a Unix socket as ever; one on another node on a TCP port that lets in
only who knows the gang's secret.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray

from engine.executor.rank_actor import Place

logger = logging.getLogger(__name__)


async def find_places(ranks: Sequence[Any], locate: Callable[[], Path] | None) -> list[Place]:
    """Ask where the ranks run, have them meet there, and find the model when they load.

    Args:
        ranks: actors that have not loaded yet.
        locate: finds the model's folder on another node than this one, if need be by fetching it.
    """
    places: list[Place] = await asyncio.gather(*(rank.place.remote() for rank in ranks))
    logger.info("ranks_placed nodes=%s", " ".join(place.address for place in places))
    first, *others = ranks
    if others:
        # the name keeps ranks of other gangs out
        url = await first.open_rendezvous.remote(places[0].address, secrets.token_hex(16))
        await asyncio.gather(*(rank.join_rendezvous.remote(url) for rank in others))
    if locate is not None:
        away = [rank for rank, place in zip(ranks, places, strict=True) if not is_here(place)]
        await asyncio.gather(*(rank.locate_by.remote(locate) for rank in away))
    return places


async def listen(
    ranks: Sequence[Any], paths: Sequence[str], secret: bytes, places: Sequence[Place] | None
) -> list[str]:
    """Have every rank wait for the scheduler; returns the addresses for it.

    Args:
        paths: of the Unix socket of each rank on this node.
        places: None where all ranks run on this node.
    """
    calls = []
    for index, rank in enumerate(ranks):
        if places is None or is_here(places[index]):
            calls.append(rank.listen.remote(paths[index]))
        else:
            calls.append(rank.listen_on_node.remote(places[index].address, secret))
    answers = await asyncio.gather(*calls)
    return [url or path for url, path in zip(answers, paths, strict=True)]


def find_away(places: Sequence[Place] | None) -> list[int]:
    """Ranks on other nodes than this one; see `listen`."""
    return [rank for rank, place in enumerate(places or ()) if not is_here(place)]


def is_here(place: Place) -> bool:
    """Whether a place is this node."""
    return place.node == str(ray.get_runtime_context().get_node_id())
