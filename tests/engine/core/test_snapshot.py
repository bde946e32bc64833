import itertools
from dataclasses import replace

import pytest

from engine.core.engine import Engine
from engine.core.snapshot import MAX_WAITING
from engine.executor.codec import Codec
from engine.runtime.messages import SNAPSHOTS
from engine.types import (
    Capacity,
    EngineSnapshot,
    Request,
    RequestState,
    SamplingParams,
    StepOutput,
    Terms,
    int32,
)
from tests.engine.core.harness.checked_engine import CheckedEngine
from tests.engine.core.harness.workload import run_workload
from tests.fakes import scripted_worker as scripted
from tests.fakes.symbolic_executor import SymbolicExecutor

CAPACITY = Capacity(num_blocks=64, block_size=4, num_rows=16)


def tables_of(snapshot: EngineSnapshot) -> list[list[int]]:
    """The block table of each sequence."""
    ends = list(itertools.accumulate(snapshot.pool.table_lens))
    starts = [0, *ends][:-1]
    return [
        snapshot.pool.tables[start:end].tolist() for start, end in zip(starts, ends, strict=True)
    ]


def check_snapshot(checked: CheckedEngine) -> None:
    """A snapshot says what the output of the step says, and its tables what the pool counts."""
    snapshot = checked.engine.scheduler.snapshot(5.0)
    assert SNAPSHOTS.decode(SNAPSHOTS.encode(snapshot)) == snapshot
    stats, pool, size = checked.stats, snapshot.pool, snapshot.block_size
    assert snapshot.usage == stats.usage
    counts = snapshot.num_running, snapshot.num_waiting, snapshot.num_swapped
    assert counts == (stats.num_running, stats.num_waiting, stats.num_swapped)
    assert len(snapshot.requests) == sum(counts)
    states = snapshot.states.tolist()
    assert states.count(RequestState.WAITING) == snapshot.num_waiting
    assert states.count(RequestState.SWAPPED) == snapshot.num_swapped
    unused = [block for block, count in enumerate(pool.references) if not count]
    pinned = set(pool.pinned) & set(unused)
    cached = {block for block in unused if pool.kept[block]} - pinned
    assert len(pinned) * size == stats.usage.pinned
    assert len(cached) * size == stats.usage.cached
    assert (len(unused) - len(pinned) - len(cached)) * size == stats.usage.free
    check_tables(checked, snapshot)


def check_tables(checked: CheckedEngine, snapshot: EngineSnapshot) -> None:
    """Every reference is that of a table; tables hold what their sequences have computed."""
    used = [block for table in tables_of(snapshot) for block in table]
    held = [used.count(block) for block in range(len(snapshot.pool.references))]
    assert all(map(int.__ge__, snapshot.pool.references.tolist(), held))
    # others are of requests that have ended, and whose blocks a plan in flight still touches
    if checked.engine.scheduler.num_in_flight == 0:
        assert snapshot.pool.references.tolist() == held
    for table, num_scheduled, owner in zip(
        tables_of(snapshot), snapshot.num_scheduled, snapshot.owners, strict=True
    ):
        is_in_batch = snapshot.states[owner] in (RequestState.PREFILLING, RequestState.RUNNING)
        # one that is preempted keeps its blocks as long as a plan in flight touches them
        assert table or not is_in_batch
        assert not table or len(table) * snapshot.block_size >= num_scheduled


@pytest.mark.parametrize("first_seed", range(0, 20, 10))
def test_snapshots_agree_with_the_counts_of_random_workloads(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 10):
        run_workload(seed, look=check_snapshot)


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(10_000, 11_000, 50))
def test_snapshots_agree_with_the_counts_of_a_thousand_workloads(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        run_workload(seed, look=check_snapshot)


@pytest.mark.parametrize("policy", ["reserved_max", "reserved_oracle", "faster_transformer"])
def test_reserved_memory_shows_its_buffers_as_tables(policy: str) -> None:
    engine = engine_of(memory_policy=policy, max_model_len=32)
    add(engine, 1, prompt_len=5, n=2)
    step(engine)
    snapshot = engine.scheduler.snapshot(0.0)
    tables = tables_of(snapshot)
    assert len(tables) == 2
    assert set(tables[0]).isdisjoint(tables[1])
    used = sum(map(len, tables))
    assert sum(snapshot.pool.references) == used
    usage = snapshot.usage
    num_free = snapshot.pool.references.count(0)
    assert usage.free == num_free * snapshot.block_size


def test_the_columns_describe_each_request_and_its_sequences() -> None:
    engine = engine_of()
    add(engine, 7, prompt_len=5, n=2, account=b"a")
    add(engine, 8, prompt_len=3, beam_width=2, account=b"b")
    step(engine)
    snapshot = engine.scheduler.snapshot(2.5)
    assert snapshot.time_us == 2_500_000
    assert snapshot.requests.tolist() == [7, 8]
    assert snapshot.accounts == (b"a", b"b")
    assert snapshot.prompt_lens.tolist() == [5, 3]
    assert snapshot.max_tokens.tolist() == [9, 9]
    assert snapshot.widths.tolist() == [2, 2]
    assert snapshot.beam_widths.tolist() == [0, 2]
    assert snapshot.owners.tolist() == [0, 0, 1, 1]
    assert snapshot.choices.tolist() == [0, 1, 0, 1]
    assert set(snapshot.states) == {RequestState.RUNNING}


def test_of_a_long_queue_only_the_first_are_listed() -> None:
    engine = engine_of()
    for request_id in range(MAX_WAITING + 50):
        add(engine, request_id, prompt_len=2)
    snapshot = engine.scheduler.snapshot(0.0)
    assert snapshot.num_waiting == MAX_WAITING + 50
    assert snapshot.requests.tolist() == list(range(MAX_WAITING))


def test_what_happens_later_does_not_change_a_snapshot() -> None:
    engine = engine_of()
    add(engine, 1, prompt_len=5)
    step(engine)
    snapshot = engine.scheduler.snapshot(0.0)
    before = Codec(EngineSnapshot).encode(snapshot)
    while engine.has_work:
        step(engine)
    assert Codec(EngineSnapshot).encode(snapshot) == before


def engine_of(**options: object) -> Engine:
    config = replace(scripted.engine_config().scheduler, **options)  # type: ignore[arg-type]
    return Engine(config, SymbolicExecutor(CAPACITY, scripted.ScriptedModel(), run_ahead=1))


def add(
    engine: Engine,
    request_id: int,
    *,
    prompt_len: int,
    n: int = 1,
    beam_width: int = 0,
    account: bytes = b"",
) -> None:
    engine.scheduler.add(
        Request(
            request_id=request_id,
            prompt=int32([1] * prompt_len),
            sampling=SamplingParams(max_tokens=9, n=n, beam_width=beam_width),
            terms=Terms(account=account),
        )
    )


def step(engine: Engine) -> StepOutput | None:
    return engine.step(0.0)
