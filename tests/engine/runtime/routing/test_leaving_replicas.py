"""Replicas that are about to stop: for how long calls still reach them."""

from engine.runtime.routing.leaving_replicas import UNUSED_S, LeavingReplicas

BOTH = {"a": 1, "b": 2}


def test_a_replica_off_the_list_is_reachable_while_it_drains() -> None:
    leaving = LeavingReplicas[int](drain_s=30.0)
    assert leaving.update(BOTH, BOTH, 0.0) == []
    assert leaving.update(BOTH, {"b": 2}, 0.0) == [1]
    assert leaving.has("a")
    assert not leaving.has("b")
    for now_s in range(0, 30, 2):
        assert leaving.is_reachable("a", float(now_s))
        assert leaving.is_reachable("b", float(now_s))
        assert leaving.update(BOTH, {"b": 2}, float(now_s)) == [1]
    assert not leaving.is_reachable("a", 30.0)
    assert leaving.is_reachable("b", 30.0)
    assert leaving.update(BOTH, {"b": 2}, 30.0) == []
    assert not leaving


def test_a_replica_that_nobody_calls_is_forgotten() -> None:
    leaving = LeavingReplicas[int](drain_s=30.0)
    leaving.update(BOTH, {"b": 2}, 0.0)
    assert leaving.is_reachable("a", UNUSED_S - 1)
    assert leaving.update(BOTH, {"b": 2}, UNUSED_S) == [1]
    assert leaving.update(BOTH, {"b": 2}, 2 * UNUSED_S) == []


def test_a_replica_that_comes_back_takes_requests_again() -> None:
    leaving = LeavingReplicas[int](drain_s=1.0)
    leaving.update(BOTH, {"b": 2}, 0.0)
    assert leaving.update(BOTH, BOTH, 0.5) == []
    assert not leaving.has("a")
    assert leaving.is_reachable("a", 9.0)


def test_a_replica_that_has_died_is_not_kept() -> None:
    leaving = LeavingReplicas[int](drain_s=30.0)
    leaving.update(BOTH, {"b": 2}, 0.0)
    assert leaving.update({"b": 2}, {"b": 2}, 1.0) == []
