from dataclasses import replace

from load_tests.faults.holdings import Holdings

HELD = Holdings(roles={"proxy": 1, "scheduler": 2}, replicas=2, object_bytes=64 << 20)


def test_what_differs_is_said_in_words() -> None:
    assert HELD.differences(HELD) == ()
    more = replace(HELD, roles={"proxy": 1, "worker rank": 1}, used_tokens=16, replicas=1)
    assert HELD.differences(more) == (
        "scheduler: 0 for 2",
        "worker rank: 1 for 0",
        "engine replicas: 1 for 2",
        "KV slots in use: 16 for 0",
    )


def test_an_arena_that_is_left_is_seen_and_what_serve_keeps_is_not() -> None:
    assert HELD.differences(replace(HELD, object_bytes=HELD.object_bytes + (1 << 20))) == ()
    assert HELD.differences(replace(HELD, object_bytes=96 << 20)) == (
        "bytes of objects: 100663296 for 67108864",
    )
    assert HELD.differences(replace(HELD, object_bytes=0))
