from engine.config import PrefixConfig
from engine.runtime.client.prefix_list import list_pins, list_prefixes, merge_prefixes
from engine.runtime.messages import PrefixInfo, tokens_digest
from engine.types import PinnedPrefix, int32

TOKENS = int32([1, 2, 3, 4, 5, 6, 7, 8])


def pinned(name: str, salt: bytes, expires_s: float | None = None) -> PinnedPrefix:
    return PinnedPrefix(
        salt=salt,
        name=name,
        tokens=TOKENS,
        num_blocks=2,
        is_warm=name != "cold",
        expires_s=expires_s,
    )


def info(name: str, ttl_s: float | None, *, is_warm: bool = True) -> PrefixInfo:
    digest = tokens_digest(TOKENS)
    return PrefixInfo(
        name=name, num_tokens=8, num_blocks=2, digest=digest, is_warm=is_warm, ttl_s=ttl_s
    )


PINNED = [
    pinned("a", b"one"),
    pinned("b", b"one", expires_s=12.0),
    pinned("cold", b"one", expires_s=11.0),
    pinned("gone", b"one", expires_s=10.0),
    pinned("a", b"two", expires_s=15.0),
]


def test_a_tenant_sees_its_own_prefixes_and_the_seconds_they_have_left() -> None:
    assert list_prefixes(PINNED, b"one", 10.0) == [
        info("a", None),
        info("b", 2.0),
        info("cold", 1.0, is_warm=False),
    ]
    assert list_prefixes(PINNED, b"two", 10.0) == [info("a", 5.0)]
    assert list_prefixes(PINNED, b"", 10.0) == []


def test_another_replica_is_offered_the_prefixes_of_all_tenants() -> None:
    assert list_pins([PINNED[0], *PINNED[3:]], 10.0) == [
        PrefixConfig(name="a", token_ids=(1, 2, 3, 4, 5, 6, 7, 8), salt=b"one"),
        PrefixConfig(name="a", token_ids=(1, 2, 3, 4, 5, 6, 7, 8), ttl_s=5.0, salt=b"two"),
    ]


def test_of_several_replicas_the_coldest_and_the_first_end_count() -> None:
    lists = [
        [info("a", None), info("b", 3.0), info("c", 1.0)],
        [info("c", None, is_warm=False), info("b", 2.0)],
        [info("c", 4.0), info("d", None)],
    ]
    assert merge_prefixes(lists) == [
        info("a", None),
        info("b", 2.0),
        info("c", 1.0, is_warm=False),
        info("d", None),
    ]
