"""What a process knows of its replicas is what was said last."""

from engine.runtime.routing import known_replicas


def test_the_latest_list_replaces_the_one_before() -> None:
    known_replicas.publish({"one": {"report": 1}, "two": {}})
    known_replicas.publish({"two": {"report": 2}})
    assert known_replicas.latest() == {"two": {"report": 2}}
    known_replicas.publish({})
    assert known_replicas.latest() == {}
