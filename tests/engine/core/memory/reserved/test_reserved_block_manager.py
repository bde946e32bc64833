from dataclasses import replace
from itertools import product
from random import Random

import pytest

from engine.config import MemoryPolicy, SchedulerConfig
from engine.core.engine import Engine
from engine.core.memory.reserved.reservation import oracle, pow2
from engine.core.memory.reserved.reserved_block_manager import ReservedBlockManager
from engine.core.scheduling.grouping import make_group
from engine.core.scheduling.limits import clip_max_tokens
from engine.core.scheduling.policies import make_block_manager
from engine.core.sequence_group import SequenceGroup
from engine.errors import PromptTooLong
from engine.types import Capacity, MemoryUsage, Request, SamplingParams, int32
from tests.fakes.symbolic_executor import SymbolicExecutor

MAX_LEN = 64
BLOCK_SIZE = 4
CAPACITY = Capacity(num_blocks=40, block_size=BLOCK_SIZE, num_rows=8)
RESERVED: tuple[MemoryPolicy, ...] = (
    "reserved_oracle",
    "reserved_pow2",
    "reserved_max",
    "faster_transformer",
)
Answers = dict[int, list[list[int]]]


def _config(policy: MemoryPolicy) -> SchedulerConfig:
    return SchedulerConfig(
        max_num_batched_tokens=7,
        max_model_len=MAX_LEN,
        memory_policy=policy,
        eos_token_ids=(3,),
        prompt_share=1.0,
    )


def _group(prompt_len: int, max_tokens: int, first_id: int = 0, **sampling: int) -> SequenceGroup:
    params = SamplingParams(max_tokens=max_tokens, **sampling)  # type: ignore[arg-type]
    request = Request(request_id=first_id, prompt=int32([0] * prompt_len), sampling=params)
    return make_group(request, first_id, _config("paged"), CAPACITY)


def _oracle() -> ReservedBlockManager:
    return ReservedBlockManager(40, BLOCK_SIZE, max_len=MAX_LEN, estimate=oracle)


def _sum(usage: MemoryUsage) -> int:
    parts = (usage.filled, usage.reserved, usage.internal, usage.external, usage.cached, usage.free)
    assert min(parts) >= 0
    return sum(parts)


@pytest.mark.parametrize(
    ("policy", "filled", "reserved", "internal", "external", "free"),
    [
        # 10 + 9 = 19 of 20 slots asked for, 5 blocks in a chunk of 8
        ("reserved_oracle", 10, 9, 0, 13, 128),
        # the output counts as 16, and 26 slots make 7 blocks
        ("reserved_pow2", 10, 9, 7, 6, 128),
        ("reserved_max", 10, 9, 45, 0, 96),
    ],
)
def test_usage_counts_slots_by_use(
    policy: MemoryPolicy, filled: int, reserved: int, internal: int, external: int, free: int
) -> None:
    manager = make_block_manager(_config(policy), CAPACITY)
    manager.allocate(_group(prompt_len=10, max_tokens=9))
    # the last of 9 tokens is sampled but never fed back, so its slot stays empty
    expected = MemoryUsage(
        total=160,
        filled=filled,
        reserved=reserved - 1,
        internal=internal + 1,
        external=external,
        free=free,
    )
    assert manager.usage() == expected
    assert _sum(expected) == 160


def test_pow2_overestimates_by_less_than_twice() -> None:
    assert [pow2(n) for n in (1, 2, 3, 4, 5, 1025)] == [1, 2, 4, 4, 8, 2048]
    assert all(n <= pow2(n) < 2 * n for n in range(1, 300))


def test_no_reservation_is_longer_than_the_context() -> None:
    manager = ReservedBlockManager(40, BLOCK_SIZE, max_len=MAX_LEN, estimate=pow2)
    (allocations,) = manager.allocate(_group(prompt_len=30, max_tokens=33))
    assert len(allocations.update.new_blocks) == MAX_LEN // BLOCK_SIZE


def test_the_whole_group_is_tried_before_blocks_are_allocated() -> None:
    manager = _oracle()
    assert manager.can_allocate(_group(8, 8, n=8))
    manager.allocate(_group(8, 8, n=8, first_id=100))
    assert not manager.can_allocate(_group(8, 8, n=3))
    assert manager.can_allocate(_group(8, 8, n=2))


def test_what_never_fits_is_refused_with_both_numbers() -> None:
    engine = Engine(_config("reserved_max"), SymbolicExecutor(CAPACITY))
    request = Request(
        request_id=0, prompt=int32([1] * 4), sampling=SamplingParams(max_tokens=8, n=3)
    )
    with pytest.raises(PromptTooLong) as raised:
        engine.scheduler.add(request)
    assert (raised.value.limit, raised.value.got) == (160, 192)
    assert not engine.has_work


@pytest.mark.parametrize("policy", RESERVED)
@pytest.mark.parametrize("num_blocks", [16, 23, 40])
def test_whatever_is_accepted_has_room_in_an_empty_pool(
    policy: MemoryPolicy, num_blocks: int
) -> None:
    config, pool = _config(policy), replace(CAPACITY, num_blocks=num_blocks)
    plenty = replace(CAPACITY, num_blocks=1000)
    seen = set()
    for prompt_len, max_tokens, n in product(range(1, 60, 7), range(1, 60, 7), (1, 2, 3, 5)):
        sampling = SamplingParams(max_tokens=max_tokens, n=n)
        request = Request(request_id=0, prompt=int32([0] * prompt_len), sampling=sampling)
        group = make_group(request, 0, config, plenty)
        has_room = make_block_manager(config, pool).can_allocate(group)
        try:
            is_accepted = bool(clip_max_tokens(prompt_len, sampling, config, pool))
        except PromptTooLong:
            is_accepted = False
        assert is_accepted == has_room, (prompt_len, max_tokens, n)
        seen.add(has_room)
    assert seen == {True, False}


def test_tables_are_contiguous_and_known_from_the_start() -> None:
    manager = _oracle()
    (allocations,) = manager.allocate(_group(10, 9))
    blocks = manager.block_table(0)
    assert allocations.update.new_blocks == tuple(enumerate(blocks))
    assert blocks == tuple(range(blocks[0], blocks[0] + 5))
    assert not any(manager.append(0).new_blocks for _ in range(8))


def test_a_fork_copies_what_the_parent_has_into_a_buffer_of_its_own() -> None:
    manager = _oracle()
    manager.allocate(_group(10, 9, n=2))
    update = manager.fork(0, 1)
    parent, child = manager.block_table(0), manager.block_table(1)
    assert set(parent).isdisjoint(child)
    assert update.new_blocks == tuple(enumerate(child))
    # 10 tokens are in three blocks of four
    assert update.copies == tuple(zip(parent, child, strict=True))[:3]


def test_buffers_of_siblings_not_forked_yet_are_freed_with_the_group() -> None:
    manager = _oracle()
    manager.allocate(_group(10, 9, n=4))
    manager.free(0)
    manager.free(0)
    assert manager.usage().free == 160


def test_a_beam_that_died_keeps_its_buffer_for_the_one_that_follows() -> None:
    manager = _oracle()
    manager.allocate(_group(10, 9, beam_width=2))
    manager.fork(0, 1)
    free = manager.usage().free
    manager.free(1)
    assert manager.usage().free == free
    manager.fork(0, 1)
    manager.free(0)
    manager.free(1)
    assert manager.usage().free == 160


@pytest.mark.in_turn
@pytest.mark.parametrize("run_ahead", [1, 2])
@pytest.mark.parametrize("policy", RESERVED)
def test_answers_do_not_depend_on_the_memory(policy: MemoryPolicy, run_ahead: int) -> None:
    for seed in range(12):
        requests = _draw(Random(seed))
        assert _answers(policy, requests, run_ahead) == _answers("paged", requests, run_ahead)


def _draw(random: Random) -> list[Request]:
    """Requests of all kinds that fit every policy."""
    requests = []
    for request_id in range(10):
        prompt = int32([random.randrange(17) for _ in range(random.randint(1, 30))])
        sampling = SamplingParams(
            max_tokens=random.randint(1, 20),
            seed=request_id,
            ignore_eos=random.random() < 0.5,
            n=(n := random.choice((1, 1, 2))),
            beam_width=random.choice((0, 0, n, 2)),
        )
        requests.append(Request(request_id=request_id, prompt=prompt, sampling=sampling))
    return requests


def _answers(policy: MemoryPolicy, requests: list[Request], run_ahead: int) -> Answers:
    engine = Engine(_config(policy), SymbolicExecutor(CAPACITY, run_ahead=run_ahead))
    for request in requests:
        engine.scheduler.add(request)
    answers: Answers = {r.request_id: [[] for _ in range(r.sampling.n)] for r in requests}
    aborted = requests[3].request_id
    for step in range(2000):
        if step == 9:
            engine.scheduler.abort(aborted)
        output = engine.step(0.0)
        if output is None:
            del answers[aborted]
            return answers
        usage = output.stats.usage
        assert _sum(usage) == usage.total
        for request_id, choice, token in zip(
            output.request_ids, output.choices, output.tokens, strict=True
        ):
            answers[request_id][choice].append(token)
        if not engine.has_work:
            assert usage.free + usage.cached == usage.total, "blocks leaked"
    raise AssertionError("no end")
