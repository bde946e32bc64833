"""Pinned prefixes: they outlast every pressure, within a budget that cannot starve the pool."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.config import SchedulerConfig
from engine.core.engine import Engine
from engine.core.memory import pinned_prefixes
from engine.core.memory.block_pool import BlockPool
from engine.core.memory.pinned_prefixes import PinLimits, PinnedPrefixes
from engine.core.memory.prefix_cache import PrefixCache
from engine.core.scheduling.policies import make_block_manager
from engine.errors import ConfigError, InvalidRequest
from engine.types import Capacity, Pin, Request, SamplingParams, int32
from tests.engine.core.harness.checked_engine import CheckedEngine
from tests.engine.core.harness.expectations import Setting
from tests.fakes.symbolic_executor import SymbolicExecutor, SymbolicModel

SIZE = 4
PREFIX = list(range(3 * SIZE))
CAPACITY = Capacity(num_blocks=12, block_size=SIZE, num_rows=4)


def checked_engine_of(share: float = 0.4, capacity: Capacity = CAPACITY) -> CheckedEngine:
    config = SchedulerConfig(
        max_num_batched_tokens=64, max_model_len=24, pinned_prefix_share=share, prompt_share=1.0
    )
    return CheckedEngine(Setting(capacity=capacity, config=config))


def pin(checked: CheckedEngine, prompt: list[int], name: str = "a", **options: object) -> None:
    assert checked.pin(prompt, name, **options) is not None  # type: ignore[arg-type]
    checked.drain()


def press(checked: CheckedEngine) -> None:
    """Requests of another prefix that fill and evict all that can be."""
    for start in range(100, 200, 20):
        for first in (start, start + 500):
            prompt = [first + i for i in range(18)]
            assert checked.add(prompt, checked.sampling(6, ignore_eos=True)) is not None
    checked.drain()


def num_cached(checked: CheckedEngine, prompt: list[int], salt: bytes = b"") -> int:
    """Tokens of a prompt that are found."""
    before = checked.stats.num_cached_tokens
    assert checked.add(prompt, checked.sampling(2), salt=salt) is not None
    checked.drain()
    return checked.stats.num_cached_tokens - before


def test_a_pinned_prefix_survives_what_evicts_everything_else() -> None:
    pinned, ordinary = checked_engine_of(), checked_engine_of()
    pin(pinned, PREFIX)
    num_cached(ordinary, PREFIX)
    for checked in (pinned, ordinary):
        press(checked)
    assert num_cached(pinned, [*PREFIX, 7]) == len(PREFIX)
    assert num_cached(ordinary, [*PREFIX, 7]) == 0


@pytest.mark.parametrize("end", [-1, 0, 1])
def test_a_hit_gives_what_no_cache_gives_at_block_borders(end: int) -> None:
    checked = checked_engine_of()
    pin(checked, PREFIX)
    press(checked)
    prompt = [*PREFIX, 50, 51][: len(PREFIX) + end]
    # the checked engine compares each answer with that of the model by itself
    assert num_cached(checked, prompt) == (len(prompt) - 1) // SIZE * SIZE


def test_only_full_blocks_are_pinned() -> None:
    checked = checked_engine_of()
    pin(checked, PREFIX[:-1])
    assert checked.stats.usage.pinned == 2 * SIZE
    assert checked.pin(PREFIX[: SIZE - 1], "b") is None


def test_tenants_neither_find_nor_release_each_others_prefixes() -> None:
    checked = checked_engine_of(share=0.5)
    pin(checked, PREFIX, salt=b"one")
    assert num_cached(checked, [*PREFIX, 7], salt=b"two") == 0
    pin(checked, PREFIX, salt=b"two")
    assert checked.stats.usage.pinned == 6 * SIZE
    checked.release("a", salt=b"one")
    checked.drain()
    assert checked.stats.usage.pinned == 3 * SIZE
    press(checked)
    assert num_cached(checked, [*PREFIX, 7], salt=b"two") == len(PREFIX)


def test_what_two_prefixes_share_is_counted_once() -> None:
    checked = checked_engine_of(share=0.34)
    pin(checked, PREFIX)
    assert checked.pin([*range(90, 98)], "b") is None
    pin(checked, [*PREFIX, *range(90, 94)], "b")
    assert checked.stats.usage.pinned == 4 * SIZE
    checked.release("b")
    checked.drain()
    assert checked.stats.usage.pinned == 3 * SIZE


def test_the_budget_is_taken_at_once_and_refused_with_both_numbers() -> None:
    checked = checked_engine_of()
    assert checked.pin(PREFIX, "a") is not None
    with pytest.raises(InvalidRequest, match="needs 3 more blocks, but only 1 of the 4"):
        checked.engine.scheduler.add(request_of([*range(50, 62)], "b"))


def test_a_prefix_ends_with_its_time_and_pinning_it_again_starts_anew() -> None:
    checked = checked_engine_of()
    pin(checked, PREFIX, ttl_s=6.0)
    for _ in range(3):
        num_cached(checked, [9])
    assert checked.stats.usage.pinned == 0
    assert num_cached(checked, [*PREFIX, 7]) == len(PREFIX), "given to the ordinary cache"
    pin(checked, PREFIX, ttl_s=6.0)
    num_cached(checked, [9])
    pin(checked, PREFIX, ttl_s=None)
    for _ in range(6):
        num_cached(checked, [9])
    assert checked.stats.usage.pinned == 3 * SIZE


def test_several_prefixes_end_one_after_the_other() -> None:
    checked = checked_engine_of()
    pin(checked, PREFIX[:SIZE], "a", ttl_s=3.0)
    pin(checked, [*range(50, 58)], "b", ttl_s=9.0)
    for left in (2, 0):
        for _ in range(4):
            num_cached(checked, [9])
        assert checked.stats.usage.pinned == left * SIZE


def test_a_name_stands_for_one_prefix_of_a_tenant() -> None:
    checked = checked_engine_of(share=0.5)
    pin(checked, PREFIX)
    with pytest.raises(InvalidRequest, match="'a' is pinned with other tokens"):
        checked.engine.scheduler.add(request_of([*range(50, 58)], "a"))
    pin(checked, [*range(50, 58)], "a", salt=b"other tenant")


def test_a_name_that_is_being_computed_is_taken() -> None:
    checked = checked_engine_of()
    assert checked.pin(PREFIX, "a") is not None
    with pytest.raises(InvalidRequest, match="being computed"):
        checked.engine.scheduler.add(request_of(PREFIX, "a"))


@pytest.mark.parametrize("num_steps", [0, 1, 2])
@pytest.mark.parametrize("how", [CheckedEngine.abort, lambda checked, _: checked.release("a")])
def test_an_end_while_it_is_computed_frees_all(
    num_steps: int, how: Callable[[CheckedEngine, int], None]
) -> None:
    config = SchedulerConfig(
        max_num_batched_tokens=SIZE, max_model_len=24, pinned_prefix_share=0.5, prompt_share=1.0
    )
    checked = CheckedEngine(Setting(capacity=CAPACITY, config=config, run_ahead=2))
    assert checked.pin(PREFIX, "a") == 0
    for _ in range(num_steps):
        checked.step()
    how(checked, 0)
    checked.drain()
    assert checked.stats.usage.pinned == 0
    pin(checked, [*range(50, 74)][:20], "a")


def test_an_abort_of_the_refresh_leaves_what_is_pinned() -> None:
    checked = checked_engine_of()
    pin(checked, PREFIX)
    request_id = checked.pin(PREFIX, "a")
    assert request_id is not None
    checked.abort(request_id)
    checked.drain()
    assert checked.stats.usage.pinned == 3 * SIZE


def test_prefixes_take_no_room_from_the_longest_request() -> None:
    # 24 tokens are 6 of 12 blocks; 6 may be pinned
    checked = checked_engine_of(share=0.5)
    pin(checked, [*range(24)][:23], "a")
    assert checked.add([*range(300, 320)], checked.sampling(4, ignore_eos=True)) is not None
    checked.drain()
    # two sequences of 5 blocks could need more than what is not pinned
    assert checked.add([*range(300, 302)], checked.sampling(16, n=2)) is None


def test_pinned_blocks_that_are_hit_take_no_room() -> None:
    checked = checked_engine_of(0.5, Capacity(num_blocks=6, block_size=SIZE, num_rows=4))
    pin(checked, PREFIX[:8])
    # two blocks each are new, or two are found and one is new: four are free
    checked.add([*range(300, 307)], checked.sampling(2, ignore_eos=True))
    checked.add([*PREFIX[:8], 7], checked.sampling(2, ignore_eos=True))
    checked.step()
    assert checked.stats.num_running == 2


def test_a_block_that_the_cache_has_forgotten_meanwhile_is_pinned() -> None:
    pool, cache = BlockPool(2), PrefixCache(4)
    prefixes = PinnedPrefixes(pool, cache, SIZE, PinLimits(num_blocks=1, per_tenant=1))
    request = request_of(PREFIX[:SIZE], "a")
    prefixes.reserve(request)
    prefixes.pin(request, (pool.allocate(),))
    assert (pool.release(0), pool.num_unused_pinned, pool.num_free) == (True, 1, 1)


def test_each_tenant_has_so_many_names_and_no_more() -> None:
    pool, cache = BlockPool(8), PrefixCache(SIZE)
    prefixes = PinnedPrefixes(pool, cache, SIZE, PinLimits(num_blocks=8, per_tenant=2))
    # they share their only block, so the budget does not bound them
    for name in ("a", "b"):
        prefixes.reserve(request_of(PREFIX[:SIZE], name))
    with pytest.raises(InvalidRequest, match="'c' is one too many: 2 are allowed"):
        prefixes.reserve(request_of(PREFIX[:SIZE], "c"))
    prefixes.reserve(replace(request_of(PREFIX[:SIZE], "c"), salt=b"another"))
    prefixes.release(b"", "a")
    prefixes.reserve(request_of(PREFIX[:SIZE], "c"))


def test_a_report_of_all_prefixes_fits_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned_prefixes, "MAX_PINNED_TOKENS", 3 * SIZE)
    limits = PinLimits(num_blocks=8, per_tenant=9)
    prefixes = PinnedPrefixes(BlockPool(8), PrefixCache(SIZE), SIZE, limits)
    prefixes.reserve(request_of(PREFIX[: 2 * SIZE], "a"))
    with pytest.raises(InvalidRequest, match="'b' is too long"):
        prefixes.reserve(request_of(PREFIX[: 2 * SIZE], "b"))
    prefixes.reserve(request_of(PREFIX[:SIZE], "b"))


@pytest.mark.parametrize(("share", "fits"), [(0.49, True), (0.5, False), (0.99, False)])
def test_a_share_that_could_starve_the_pool_is_refused(share: float, fits: bool) -> None:
    # the longest sequence has 50 blocks, and one is kept free
    capacity = Capacity(num_blocks=100, block_size=4, num_rows=4)
    config = SchedulerConfig(
        max_num_batched_tokens=64, max_model_len=200, pinned_prefix_share=share, prompt_share=1.0
    )
    if fits:
        make_block_manager(config, capacity)
        return
    with pytest.raises(ConfigError, match=r"leaves \d+ of 100 blocks.* needs 50"):
        make_block_manager(config, capacity)


@pytest.mark.parametrize(
    "options", [{"prefix_cache": False}, {"memory_policy": "reserved_max"}], ids=str
)
def test_a_memory_that_shares_nothing_pins_nothing(options: dict[str, object]) -> None:
    config = SchedulerConfig(max_num_batched_tokens=64, max_model_len=24, **options)  # type: ignore[arg-type]
    engine = Engine(config, SymbolicExecutor(CAPACITY, SymbolicModel()))
    with pytest.raises(InvalidRequest, match="prefix cache"):
        engine.scheduler.add(request_of(PREFIX, "a"))
    assert not engine.has_work
    engine.scheduler.release_prefix(b"", "a")


@pytest.mark.parametrize(
    "sampling", [SamplingParams(max_tokens=2), SamplingParams(max_tokens=1, n=2)]
)
def test_a_prefix_has_no_output(sampling: SamplingParams) -> None:
    request = Request(request_id=1, prompt=int32(PREFIX), sampling=sampling, pin=Pin(name="a"))
    with pytest.raises(InvalidRequest, match="one sequence of one token"):
        checked_engine_of().engine.scheduler.add(request)


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
    test_each_tenant_has_so_many_names_and_no_more,
]
