"""Which replica is best for a request: queues, caches, memory, sessions."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from engine.core.memory.prefix_cache import PrefixChain
from engine.core.memory.prefix_marks import MARK_BYTES
from engine.runtime.routing.replica_load import ReplicaLoad
from engine.runtime.routing.scoring import (
    SESSION_PATIENCE_S,
    KnownLoad,
    common_rate,
    home_of,
    marks_of_prompt,
    num_cached_tokens,
    rank,
)
from engine.types import Request, SamplingParams, int32

BLOCK = 16
PROMPT = int32(list(range(1000)))
IDLE = ReplicaLoad(tokens_per_s=1000.0, total_tokens=100_000, free_tokens=100_000, block_size=BLOCK)


def request(**fields: Any) -> Request:
    sampling = fields.pop("sampling", SamplingParams(max_tokens=1))
    return Request(request_id=1, prompt=fields.pop("prompt", PROMPT), sampling=sampling, **fields)


def known(*, cached: int = 0, sent: float = 0.0, salt: bytes = b"", **load: Any) -> KnownLoad:
    """A replica that has cached the first tokens of the prompt."""
    marks = marks_of_prompt(int32([*PROMPT[:cached], 0]), salt, BLOCK)
    return KnownLoad(load=replace(IDLE, **load), marks=frozenset(marks), sent_tokens=sent)


def best(of: Request, replicas: dict[str, KnownLoad]) -> set[str]:
    """The replicas that are first, whatever chance says."""
    return {rank(of, replicas, Random(seed))[0][0] for seed in range(20)}


def test_a_prompt_has_the_marks_of_every_eighth_block_that_it_can_share() -> None:
    links = PrefixChain.of_tenant(b"salt", BLOCK).extended(PROMPT[:256]).links
    first, second = (link.key[:MARK_BYTES] for link in (links[7], links[15]))
    assert marks_of_prompt(PROMPT[:257], b"salt", BLOCK) == {first: 128, second: 256}
    # the last token is always computed
    assert marks_of_prompt(PROMPT[:256], b"salt", BLOCK) == {first: 128}
    assert marks_of_prompt(PROMPT[:100], b"salt", BLOCK) == {}


def test_marks_of_long_prompts_are_far_apart() -> None:
    marks = marks_of_prompt(int32([1] * 20_000), b"", BLOCK)
    factors = [tokens // 128 for tokens in marks.values()]
    assert factors[:16] == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32]
    assert factors[-1] == 128


def test_tenants_have_no_marks_in_common() -> None:
    mine = marks_of_prompt(PROMPT, b"mine", BLOCK)
    assert not mine.keys() & marks_of_prompt(PROMPT, b"yours", BLOCK).keys()


def test_the_last_mark_that_is_found_says_how_much_is_cached() -> None:
    marks = marks_of_prompt(PROMPT, b"", BLOCK)
    assert num_cached_tokens(marks, known(cached=640)) == 640
    assert num_cached_tokens(marks, known(cached=0)) == 0
    # the summary has lost the first ones
    holed = KnownLoad(load=IDLE, marks=frozenset(list(marks)[2:3]))
    assert num_cached_tokens(marks, holed) == 384


def test_the_shorter_queue_is_chosen() -> None:
    replicas = {"a": known(waiting_tokens=2000.0), "b": known(waiting_tokens=500.0), "c": known()}
    assert [tag for tag, _ in rank(request(), replicas, Random(0))] == ["c", "b", "a"]


def test_what_this_ingress_has_sent_since_counts_as_a_queue() -> None:
    assert best(request(), {"a": known(sent=500.0), "b": known()}) == {"b"}


def test_a_cached_prefix_is_worth_the_queue_that_it_saves() -> None:
    replicas = {"a": known(cached=640, waiting_tokens=600.0), "b": known()}
    assert rank(request(), replicas, Random(0)) == [("a", 360), ("b", 1000)]
    replicas["a"] = known(cached=640, waiting_tokens=700.0)
    assert best(request(), replicas) == {"b"}


def test_another_tenant_s_prefix_is_worth_nothing() -> None:
    replicas = {"a": known(cached=640, salt=b"yours"), "b": known(cached=128, salt=b"mine")}
    assert best(request(salt=b"mine"), replicas) == {"b"}


def test_a_request_that_may_not_read_the_cache_looks_for_none() -> None:
    replicas = {"a": known(cached=640), "b": known()}
    for sampling in (
        SamplingParams(max_tokens=1, deterministic=True),
        SamplingParams(max_tokens=1, prompt_logprobs=0),
    ):
        assert best(request(sampling=sampling), replicas) == {"a", "b"}


def test_a_full_pool_is_avoided_where_another_has_room() -> None:
    replicas = {"a": known(free_tokens=999), "b": known(waiting_tokens=9000.0)}
    assert best(request(), replicas) == {"b"}
    # a small pool is full sooner
    replicas = {"a": known(total_tokens=999, free_tokens=999), "b": known(waiting_tokens=9000.0)}
    assert best(request(), replicas) == {"b"}
    # what waits there will take its room first
    replicas = {"a": known(free_tokens=1500, waiting_tokens=600.0), "b": known(waiting_tokens=9e3)}
    assert best(request(), replicas) == {"b"}
    replicas = {"a": known(free_tokens=999), "b": known(free_tokens=9, waiting_tokens=500.0)}
    assert best(request(), replicas) == {"a"}


def test_among_equals_the_emptier_pool_and_then_chance_decides() -> None:
    assert best(request(), {"a": known(), "b": known(), "c": known(free_tokens=50_000)}) == {
        "a",
        "b",
    }
    assert best(request(), {"a": known(waiting_tokens=10.0), "b": known()}) == {"a", "b"}


def test_replicas_are_copies_with_one_rate() -> None:
    fast, slow, new = (known(tokens_per_s=rate) for rate in (3000.0, 1000.0, 0.0))
    assert common_rate([fast, slow, new]) == 2000.0
    assert common_rate([new]) == 0.0
    assert best(request(), {"fast": fast, "slow": slow, "new": new}) == {"fast", "slow", "new"}


def test_a_session_has_one_home_that_moves_only_with_its_replica() -> None:
    replicas = dict.fromkeys("abcd", known())
    homes = {number: home_of(bytes([number]), replicas) for number in range(100)}
    assert set(homes.values()) == set("abcd")
    del replicas["d"]
    left = {number: home_of(bytes([number]), replicas) for number in range(100)}
    assert all(left[number] == home for number, home in homes.items() if home != "d")
    assert home_of(b"", replicas) is None


@pytest.mark.parametrize("session", [b"one", b"two", b"three"])
def test_a_session_stays_at_home_unless_it_would_wait_there(session: bytes) -> None:
    replicas = {"a": known(), "b": known(cached=640)}
    home = home_of(session, replicas)
    assert home is not None
    assert best(request(session=session), replicas) == {home}
    (away,) = replicas.keys() - {home}
    busy = replicas | {home: known(waiting_tokens=1000.0 * SESSION_PATIENCE_S + 700), away: known()}
    assert best(request(session=session), busy) == {away}
    full = replicas | {home: known(free_tokens=10)}
    assert best(request(session=session), full) == {away}
