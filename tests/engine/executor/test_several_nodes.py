"""Ranks on other nodes: where they meet, and where the scheduler finds them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

from engine.executor.rank_actor import Place
from engine.executor.several_nodes import find_away, find_places, listen
from tests.fakes.local_actors import LocalCall

HERE, AWAY = Place("here", "10.0.0.1"), Place("away", "10.0.0.2")
PATHS = ["/s/0", "/s/1"]


class PlacedRank:
    """Notes what a rank is asked."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.orders: list[Any] = []

    def place(self) -> Place:
        return self._place

    def open_rendezvous(self, address: str, name: str) -> str:
        self.orders.append("opens")
        return f"tcp://{address}:1/{name}"

    def join_rendezvous(self, rendezvous: str) -> None:
        self.orders.append(rendezvous)

    def locate_by(self, locate: Callable[[], Path]) -> None:
        self.orders.append(locate())

    def listen(self, path: str) -> None:
        self.orders.append(path)

    def listen_on_node(self, address: str, secret: bytes) -> str:
        self.orders.append(secret)
        return f"tcp://{address}:2"


class _Handle:
    """What Ray gives out of an actor."""

    def __init__(self, rank: PlacedRank) -> None:
        self.rank = rank

    def __getattr__(self, name: str) -> LocalCall:
        return LocalCall(getattr(self.rank, name))


class _Here:
    """What Ray knows of this process."""

    def get_node_id(self) -> str:
        return HERE.node


@pytest.fixture(autouse=True)
def _placed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "get_runtime_context", _Here)


def ranks_at(*places: Place) -> list[_Handle]:
    return [_Handle(PlacedRank(place)) for place in places]


def orders(ranks: list[_Handle]) -> list[list[Any]]:
    return [rank.rank.orders for rank in ranks]


async def test_ranks_meet_at_the_node_of_the_first() -> None:
    ranks = ranks_at(AWAY, HERE, AWAY)
    assert await find_places(ranks, None) == [AWAY, HERE, AWAY]
    first, second, third = orders(ranks)
    assert first == ["opens"]
    assert second == third
    assert second[0].startswith("tcp://10.0.0.2:1/")


async def test_no_two_gangs_meet_at_one_name() -> None:
    names = set()
    for _ in range(2):
        ranks = ranks_at(HERE, AWAY)
        await find_places(ranks, None)
        names.add(orders(ranks)[1][0])
    assert len(names) == 2


async def test_a_single_rank_meets_nobody() -> None:
    ranks = ranks_at(AWAY)
    await find_places(ranks, None)
    assert orders(ranks) == [[]]


async def test_the_model_is_found_anew_on_other_nodes_only() -> None:
    ranks = ranks_at(HERE, AWAY)
    await find_places(ranks, lambda: Path("/there"))
    assert orders(ranks)[0] == ["opens"]
    assert orders(ranks)[1][1:] == [Path("/there")]


async def test_ranks_on_other_nodes_listen_on_a_port_that_asks_for_the_secret() -> None:
    ranks = ranks_at(HERE, AWAY)
    addresses = await listen(ranks, PATHS, b"secret", [HERE, AWAY])
    assert addresses == ["/s/0", "tcp://10.0.0.2:2"]
    assert orders(ranks) == [["/s/0"], [b"secret"]]


async def test_ranks_on_one_node_listen_on_socket_files() -> None:
    ranks = ranks_at(HERE, HERE)
    assert await listen(ranks, PATHS, b"secret", None) == PATHS
    assert orders(ranks) == [["/s/0"], ["/s/1"]]


def test_ranks_on_other_nodes_are_named() -> None:
    assert find_away([HERE, AWAY, HERE, AWAY]) == [1, 3]
    assert find_away(None) == []
