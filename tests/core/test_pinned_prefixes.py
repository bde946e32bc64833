"""Pinned prefixes: they outlast every pressure, within a budget that cannot starve the pool."""

from collections.abc import Callable

import pytest

from engine.config import SchedulerConfig
from engine.core.block_pool import BlockPool
from engine.core.engine import Engine
from engine.core.pinned_prefixes import PinnedPrefixes
from engine.core.policies import make_memory
from engine.core.prefix_cache import PrefixCache
from engine.errors import ConfigError, InvalidRequest
from engine.types import Capacity, Pin, Request, SamplingParams, int32
from tests.core.expectations import Setting
from tests.core.harness import Harness
from tests.fakes.symbolic_executor import SymbolicExecutor, SymbolicModel

SIZE = 4
PREFIX = list(range(3 * SIZE))
CAPACITY = Capacity(num_blocks=12, block_size=SIZE, num_rows=4)


def harness_of(share: float = 0.4, capacity: Capacity = CAPACITY) -> Harness:
    config = SchedulerConfig(
        max_num_batched_tokens=64, max_model_len=24, pinned_prefix_share=share, prompt_share=1.0
    )
    return Harness(Setting(capacity=capacity, config=config))


def pin(harness: Harness, prompt: list[int], name: str = "a", **options: object) -> None:
    assert harness.pin(prompt, name, **options) is not None  # type: ignore[arg-type]
    harness.drain()


def press(harness: Harness) -> None:
    """Requests of another prefix that fill and evict all that can be."""
    for start in range(100, 200, 20):
        for first in (start, start + 500):
            prompt = [first + i for i in range(18)]
            assert harness.add(prompt, harness.sampling(6, ignore_eos=True)) is not None
    harness.drain()


def num_cached(harness: Harness, prompt: list[int], salt: bytes = b"") -> int:
    """Tokens of a prompt that are found."""
    before = harness.stats.num_cached_tokens
    assert harness.add(prompt, harness.sampling(2), salt=salt) is not None
    harness.drain()
    return harness.stats.num_cached_tokens - before


def test_a_pinned_prefix_survives_what_evicts_everything_else() -> None:
    pinned, ordinary = harness_of(), harness_of()
    pin(pinned, PREFIX)
    num_cached(ordinary, PREFIX)
    for harness in (pinned, ordinary):
        press(harness)
    assert num_cached(pinned, [*PREFIX, 7]) == len(PREFIX)
    assert num_cached(ordinary, [*PREFIX, 7]) == 0


@pytest.mark.parametrize("end", [-1, 0, 1])
def test_a_hit_gives_what_no_cache_gives_at_block_borders(end: int) -> None:
    harness = harness_of()
    pin(harness, PREFIX)
    press(harness)
    prompt = [*PREFIX, 50, 51][: len(PREFIX) + end]
    # the harness compares each answer with that of the model alone
    assert num_cached(harness, prompt) == (len(prompt) - 1) // SIZE * SIZE


def test_only_full_blocks_are_pinned() -> None:
    harness = harness_of()
    pin(harness, PREFIX[:-1])
    assert harness.stats.usage.pinned == 2 * SIZE
    assert harness.pin(PREFIX[: SIZE - 1], "b") is None


def test_tenants_neither_find_nor_release_each_others_prefixes() -> None:
    harness = harness_of(share=0.5)
    pin(harness, PREFIX, salt=b"one")
    assert num_cached(harness, [*PREFIX, 7], salt=b"two") == 0
    pin(harness, PREFIX, salt=b"two")
    assert harness.stats.usage.pinned == 6 * SIZE
    harness.release("a", salt=b"one")
    harness.drain()
    assert harness.stats.usage.pinned == 3 * SIZE
    press(harness)
    assert num_cached(harness, [*PREFIX, 7], salt=b"two") == len(PREFIX)


def test_what_two_prefixes_share_is_counted_once() -> None:
    harness = harness_of(share=0.34)
    pin(harness, PREFIX)
    assert harness.pin([*range(90, 98)], "b") is None
    pin(harness, [*PREFIX, *range(90, 94)], "b")
    assert harness.stats.usage.pinned == 4 * SIZE
    harness.release("b")
    harness.drain()
    assert harness.stats.usage.pinned == 3 * SIZE


def test_the_budget_is_taken_at_once_and_refused_with_both_numbers() -> None:
    harness = harness_of()
    assert harness.pin(PREFIX, "a") is not None
    with pytest.raises(InvalidRequest, match="needs 3 more blocks, but only 1 of the 4"):
        harness.engine.reserve_prefix(request_of([*range(50, 62)], "b"))


def test_a_prefix_ends_with_its_time_and_pinning_it_again_starts_anew() -> None:
    harness = harness_of()
    pin(harness, PREFIX, ttl_s=6.0)
    for _ in range(3):
        num_cached(harness, [9])
    assert harness.stats.usage.pinned == 0
    assert num_cached(harness, [*PREFIX, 7]) == len(PREFIX), "given to the ordinary cache"
    pin(harness, PREFIX, ttl_s=6.0)
    num_cached(harness, [9])
    pin(harness, PREFIX, ttl_s=None)
    for _ in range(6):
        num_cached(harness, [9])
    assert harness.stats.usage.pinned == 3 * SIZE


def test_several_prefixes_end_one_after_the_other() -> None:
    harness = harness_of()
    pin(harness, PREFIX[:SIZE], "a", ttl_s=3.0)
    pin(harness, [*range(50, 58)], "b", ttl_s=9.0)
    for left in (2, 0):
        for _ in range(4):
            num_cached(harness, [9])
        assert harness.stats.usage.pinned == left * SIZE


def test_a_name_stands_for_one_prefix_of_a_tenant() -> None:
    harness = harness_of(share=0.5)
    pin(harness, PREFIX)
    with pytest.raises(InvalidRequest, match="'a' is pinned with other tokens"):
        harness.engine.reserve_prefix(request_of([*range(50, 58)], "a"))
    pin(harness, [*range(50, 58)], "a", salt=b"other tenant")


def test_a_name_that_is_being_computed_is_taken() -> None:
    harness = harness_of()
    assert harness.pin(PREFIX, "a") is not None
    with pytest.raises(InvalidRequest, match="being computed"):
        harness.engine.reserve_prefix(request_of(PREFIX, "a"))


@pytest.mark.parametrize("num_steps", [0, 1, 2])
@pytest.mark.parametrize("how", [Harness.abort, lambda harness, _: harness.release("a")])
def test_an_end_while_it_is_computed_frees_all(
    num_steps: int, how: Callable[[Harness, int], None]
) -> None:
    config = SchedulerConfig(
        max_num_batched_tokens=SIZE, max_model_len=24, pinned_prefix_share=0.5, prompt_share=1.0
    )
    harness = Harness(Setting(capacity=CAPACITY, config=config, run_ahead=2))
    assert harness.pin(PREFIX, "a") == 0
    for _ in range(num_steps):
        harness.step()
    how(harness, 0)
    harness.drain()
    assert harness.stats.usage.pinned == 0
    pin(harness, [*range(50, 74)][:20], "a")


def test_an_abort_of_the_refresh_leaves_what_is_pinned() -> None:
    harness = harness_of()
    pin(harness, PREFIX)
    request_id = harness.pin(PREFIX, "a")
    assert request_id is not None
    harness.abort(request_id)
    harness.drain()
    assert harness.stats.usage.pinned == 3 * SIZE


def test_prefixes_take_no_room_from_the_longest_request() -> None:
    # 24 tokens are 6 of 12 blocks; 6 may be pinned
    harness = harness_of(share=0.5)
    pin(harness, [*range(24)][:23], "a")
    assert harness.add([*range(300, 320)], harness.sampling(4, ignore_eos=True)) is not None
    harness.drain()
    # two sequences of 5 blocks could need more than what is not pinned
    assert harness.add([*range(300, 302)], harness.sampling(16, n=2)) is None


def test_pinned_blocks_that_are_hit_take_no_room() -> None:
    harness = harness_of(0.5, Capacity(num_blocks=6, block_size=SIZE, num_rows=4))
    pin(harness, PREFIX[:8])
    # two blocks each are new, or two are found and one is new: four are free
    harness.add([*range(300, 307)], harness.sampling(2, ignore_eos=True))
    harness.add([*PREFIX[:8], 7], harness.sampling(2, ignore_eos=True))
    harness.step()
    assert harness.stats.num_running == 2


def test_a_block_that_the_cache_has_forgotten_meanwhile_is_pinned() -> None:
    pool, cache = BlockPool(2), PrefixCache()
    prefixes = PinnedPrefixes(pool, cache, SIZE, budget_blocks=1)
    request = request_of(PREFIX[:SIZE], "a")
    prefixes.reserve(request)
    prefixes.pin(request, (pool.allocate(),))
    assert (pool.release(0), pool.num_unused_pinned, pool.num_free) == (True, 1, 1)


@pytest.mark.parametrize(("share", "fits"), [(0.49, True), (0.5, False), (0.99, False)])
def test_a_share_that_could_starve_the_pool_is_refused(share: float, fits: bool) -> None:
    # the longest sequence has 50 blocks, and one is kept free
    capacity = Capacity(num_blocks=100, block_size=4, num_rows=4)
    config = SchedulerConfig(
        max_num_batched_tokens=64, max_model_len=200, pinned_prefix_share=share
    )
    if fits:
        make_memory(config, capacity)
        return
    with pytest.raises(ConfigError, match=r"leaves \d+ of 100 blocks.* needs 50"):
        make_memory(config, capacity)


@pytest.mark.parametrize(
    "options", [{"prefix_cache": False}, {"memory_policy": "reserved_max"}], ids=str
)
def test_a_memory_that_shares_nothing_pins_nothing(options: dict[str, object]) -> None:
    config = SchedulerConfig(max_num_batched_tokens=64, max_model_len=24, **options)  # type: ignore[arg-type]
    engine = Engine(config, SymbolicExecutor(CAPACITY, SymbolicModel()))
    with pytest.raises(InvalidRequest, match="prefix cache"):
        engine.reserve_prefix(request_of(PREFIX, "a"))
    assert not engine.has_work
    engine.release_prefix(b"", "a")


@pytest.mark.parametrize(
    "sampling", [SamplingParams(max_tokens=2), SamplingParams(max_tokens=1, n=2)]
)
def test_a_prefix_has_no_output(sampling: SamplingParams) -> None:
    request = Request(request_id=1, prompt=int32(PREFIX), sampling=sampling, pin=Pin(name="a"))
    with pytest.raises(InvalidRequest, match="one sequence of one token"):
        harness_of().engine.reserve_prefix(request)


def request_of(prompt: list[int], name: str) -> Request:
    sampling = SamplingParams(max_tokens=1)
    return Request(request_id=77, prompt=int32(prompt), sampling=sampling, pin=Pin(name=name))


# what workloads see nothing or little of
RULES: list[Callable[[], None]] = [
    test_a_pinned_prefix_survives_what_evicts_everything_else,
    test_what_two_prefixes_share_is_counted_once,
    test_several_prefixes_end_one_after_the_other,
    test_an_abort_of_the_refresh_leaves_what_is_pinned,
    test_prefixes_take_no_room_from_the_longest_request,
    test_pinned_blocks_that_are_hit_take_no_room,
    test_a_block_that_the_cache_has_forgotten_meanwhile_is_pinned,
]
