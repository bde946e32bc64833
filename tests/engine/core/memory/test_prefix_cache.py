"""What is found: whole blocks after equal tokens of the same tenant."""

import pytest

from engine.core.memory import prefix_cache as prefix_cache_module
from engine.core.memory.prefix_cache import PrefixCache, PrefixChain
from engine.types import int32

SIZE = 4


def chain(tokens: list[int], salt: bytes = b"") -> PrefixChain:
    whole_blocks = int32(tokens[: len(tokens) // SIZE * SIZE])
    return PrefixChain.of_tenant(salt, SIZE).extended(whole_blocks)


def cache_of(tokens: list[int], salt: bytes = b"") -> PrefixCache:
    """A cache with the blocks of a prefix, numbered from 10."""
    cache = PrefixCache(4)
    for block, link in enumerate(chain(tokens, salt).links, 10):
        assert cache.insert(link, block)
    return cache


@pytest.mark.parametrize(("num_tokens", "found"), [(7, [10]), (8, [10, 11]), (9, [10, 11])])
def test_only_whole_blocks_are_found(num_tokens: int, found: list[int]) -> None:
    cache = cache_of(list(range(12)))
    assert cache.match(chain(list(range(num_tokens))).links) == found


def test_a_prefix_is_found_up_to_its_first_different_block() -> None:
    cache = cache_of(list(range(12)))
    assert cache.match(chain([*range(4), 99, *range(5, 12)]).links) == [10]
    assert cache.match(chain([99, *range(1, 12)]).links) == []


def test_a_block_after_other_tokens_is_another_block() -> None:
    cache = cache_of([0, 0, 0, 0, 1, 1, 1, 1])
    assert cache.match(chain([1, 1, 1, 1]).links) == []


def test_tenants_do_not_find_each_others_blocks() -> None:
    cache = cache_of(list(range(8)), salt=b"a")
    assert cache.match(chain(list(range(8)), salt=b"b").links) == []
    assert cache.match(chain(list(range(8))).links) == []
    assert cache.match(chain(list(range(8)), salt=b"a").links) == [10, 11]


def test_the_key_of_a_block_is_no_salt() -> None:
    key = chain([0, 1, 2, 3], salt=b"a").links[0].key
    (link,) = chain([4, 5, 6, 7], salt=key).links
    assert link.key != chain(list(range(8)), salt=b"a").links[1].key


def test_a_chain_that_grows_equals_one_made_at_once() -> None:
    grown = PrefixChain.of_tenant(b"", SIZE)
    for start in (0, 4, 12):
        end = {0: 4, 4: 12, 12: 16}[start]
        grown = grown.extended(int32(list(range(start, end))))
    assert grown == chain(list(range(16)))


def test_a_chain_goes_on_in_two_ways() -> None:
    head = chain([1, 2, 3, 4])
    for last in (5, 6):
        assert head.extended(int32([last] * 4)) == chain([1, 2, 3, 4] + [last] * 4)
    assert head == chain([1, 2, 3, 4])


def test_the_first_block_with_some_contents_stays_the_one_that_is_found() -> None:
    cache = cache_of(list(range(8)))
    first, second = chain(list(range(8))).links
    assert not cache.insert(second, 20)
    cache.forget(11)
    assert cache.match([first, second]) == [10]
    assert cache.insert(second, 20)
    assert cache.match([first, second]) == [10, 20]


def test_a_forgotten_block_is_not_found_and_hides_those_after_it() -> None:
    cache = cache_of(list(range(12)))
    cache.forget(10)
    assert cache.match(chain(list(range(12))).links) == []


def test_a_collision_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache_module, "_hash", lambda data: b"same")
    cache = cache_of([0, 1, 2, 3])
    assert cache.match(chain([9, 9, 9, 9]).links) == []
    assert cache.match(chain([0, 1, 2, 3]).links) == [10]
    assert not cache.insert(chain([9, 9, 9, 9]).links[0], 20)
