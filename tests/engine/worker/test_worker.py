"""What one rank makes of plans."""

import math
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from threading import Event
from typing import Any

import pytest
import torch

import engine.worker.worker
from engine.errors import ConfigError, InvariantViolated
from engine.types import RowAdmission, StepPlan, int32, int64
from engine.worker.sampling.sampler import RowMasks
from engine.worker.swap import arriving_blocks
from engine.worker.worker import load_worker
from kernels.runtime import HostRuntime
from tests.engine.model.tiny import TinyModel
from tests.engine.whole.engine_run import SWAP_BYTES
from tests.engine.worker.plans import GREEDY, Driver
from tests.fakes.worker_loader import LateRuntime, Replayer, loader


def test_capacity_follows_the_configuration(tiny: TinyModel) -> None:
    capacity = load_worker(tiny.config(num_blocks=33, block_size=8, max_num_seqs=5)).capacity
    assert (capacity.num_blocks, capacity.block_size, capacity.num_rows) == (33, 8, 5)


def test_a_context_that_may_be_clipped_is_what_the_pool_holds(
    tiny: TinyModel, caplog: pytest.LogCaptureFixture
) -> None:
    token_bytes = tiny.config().model.kv_bytes_per_token(4)
    options = {"num_blocks": 0, "kv_cache_bytes": 3 * 4 * token_bytes, "block_size": 4}
    config = tiny.config(**options, max_model_len=32)
    with pytest.raises(ConfigError, match="12 tokens, fewer than max_model_len 32"):
        load_worker(config)
    worker = load_worker(config.with_options(clips_context=True))
    assert worker.capacity.num_blocks == 3
    assert "context_clipped max_model_len=12 model_max=32" in caplog.text


def test_plan_that_only_releases_computes_nothing(tiny: TinyModel) -> None:
    driver = Driver(load_worker(tiny.config()))
    row = driver.admit([1, 2])
    driver.prefill(row, 2)
    driver.release(row)
    result = driver.step()
    assert len(result.tokens) == 0
    assert result.elapsed_s > 0


def test_row_released_and_admitted_in_one_plan_starts_anew(tiny: TinyModel) -> None:
    driver = Driver(load_worker(tiny.config()))
    first = driver.admit([5, 6, 7], replace(GREEDY, temperature=5.0, seed=3))
    driver.prefill(first, 8)
    driver.release(first)
    second = driver.admit([8, 9])
    assert second.row == first.row
    driver.prefill(second, 8)
    assert driver.generate(second, 12) == tiny.greedy([8, 9], 12)


def test_a_plan_waits_for_the_choice_before_it(
    tiny: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But the host goes on where a step waits for its masks."""
    may_choose, write = Event(), RowMasks.write

    def write_late(self: RowMasks, *rest: Any) -> None:
        assert may_choose.wait(10)
        write(self, *rest)

    monkeypatch.setattr(RowMasks, "write", write_late)
    driver = Driver(loader(Replayer())(tiny.config(run_ahead=2)))
    row = driver.admit([5, 6, 7], replace(GREEDY, allowed_token_ids=tuple(range(40, 90))))
    plans = [driver.plan([], [(row, 3)]), driver.plan([row], [])]
    first = driver.worker.enqueue(plans[0])
    with ThreadPoolExecutor(1) as thread:
        second = thread.submit(driver.worker.enqueue, plans[1])
        assert wait([second], timeout=0.1).not_done
        may_choose.set()
    assert {*first.result().tokens, *second.result().result().tokens} <= {*range(40, 90)}
    driver.worker.close()


def test_plans_made_ahead_of_results_decode_the_right_tokens(tiny: TinyModel) -> None:
    driver = Driver(load_worker(tiny.config(block_size=1)))
    row = driver.admit([1, 2, 3])
    plans = [driver.plan([], [(row, 3)])] + [driver.plan([row], []) for _ in range(9)]
    tokens = [driver.worker.execute(plan).tokens[0] for plan in plans]
    assert tokens == tiny.greedy([1, 2, 3], 10)


def test_copied_blocks_hold_the_same_keys_and_values(tiny: TinyModel) -> None:
    worker = load_worker(tiny.config(block_size=4))
    driver = Driver(worker)
    row = driver.admit([1, 2, 3])
    driver.prefill(row, 8)
    (source,) = row.blocks
    target = driver.free_blocks.pop()
    copying = StepPlan(
        step=9,
        append_rows=int32([row.row]),
        append_indices=int32([0]),
        append_blocks=int32([target]),
        copy_sources=int32([source]),
        copy_destinations=int32([target]),
    )
    worker.execute(copying)
    worker.pool.kv[source].fill_(math.nan)
    row.blocks[0] = target
    assert driver.generate(row, 8) == tiny.greedy([1, 2, 3], 8)


def test_a_block_that_was_changed_in_the_swap_space_is_reported(tiny: TinyModel) -> None:
    worker = load_worker(tiny.config(swap_bytes=SWAP_BYTES))
    worker.pool.kv.normal_()
    slots, keys = int32([5, 6]), int64(list(range(8)))
    saving = StepPlan(
        step=0,
        swap_out_sources=int32([1, 2]),
        swap_out_destinations=slots,
        swap_out_keys=keys,
    )
    worker.execute(saving)
    worker.pool.arena.blocks[6, 0, 0, 0, 0, 0] += 1
    restoring = StepPlan(
        step=1, swap_in_sources=slots, swap_in_destinations=int32([3, 4]), swap_in_keys=keys
    )
    assert list(worker.execute(restoring).spoiled_slots) == [6]


@pytest.mark.parametrize("fewest_tokens", [0, 4])
def test_a_token_that_a_swapped_row_writes_at_once_is_no_change_of_its_block(
    tiny: TinyModel, fewest_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arriving_blocks, "_FEWEST_PART_BYTES", 1)
    monkeypatch.setattr(engine.worker.worker, "_FEWEST_FED_IN_PARTS", fewest_tokens)
    load = loader(LateRuntime(captures=True))
    driver = Driver(load(tiny.config(block_size=4, swap_bytes=SWAP_BYTES)))
    row = driver.admit([7, 8, 9])
    driver.prefill(row, 3)
    [block] = row.blocks
    keys = int64(list(range(4)))
    saving = StepPlan(
        step=0,
        swap_out_sources=int32([block]),
        swap_out_destinations=int32([2]),
        swap_out_keys=keys,
    )
    driver.worker.execute(saving)
    driver.worker.pool.kv.fill_(math.nan)
    plan = replace(
        driver.plan([row], []),
        releases=int32([row.row]),
        admissions=[RowAdmission(row=row.row, sampling=GREEDY, length=3)],
        append_rows=int32([row.row]),
        append_indices=int32([0]),
        append_blocks=int32([block]),
        token_rows=int32([row.row]),
        token_values=int32(row.output),
        swap_in_sources=int32([2]),
        swap_in_destinations=int32([block]),
        swap_in_keys=keys,
    )
    result = driver.worker.execute(plan)
    assert not result.spoiled_slots
    assert [*row.output, *result.tokens] == tiny.greedy([7, 8, 9], 2)


@pytest.mark.parametrize("captures", [False, True])
def test_a_row_goes_on_with_the_token_that_a_plan_gives_it(tiny: TinyModel, captures: bool) -> None:
    driver = Driver(loader(HostRuntime(captures=captures))(tiny.config()))
    rows = [driver.admit([1, 2, 3]) for _ in range(4)]
    driver.step([], [(row, 3) for row in rows])
    plan = driver.plan(rows, [])
    # the second row keeps what it has sampled
    given = [77, rows[1].output[0], 200, 120]
    changed = [0, 2, 3]
    plan = replace(
        plan,
        token_rows=int32([rows[index].row for index in changed]),
        token_values=int32([given[index] for index in changed]),
    )
    result = driver.worker.execute(plan)
    expected = [tiny.greedy([1, 2, 3, token], 1)[0] for token in given]
    assert list(result.tokens) == expected
    assert len(set(expected)) > 1


def test_a_forked_row_goes_on_as_its_parent_would(tiny: TinyModel) -> None:
    driver = Driver(load_worker(tiny.config(block_size=8)))
    parent = driver.admit([1, 2, 3])
    driver.prefill(parent, 3)
    child = driver.admit([])
    plan = replace(
        driver.plan([], []),
        fork_parents=int32([parent.row]),
        fork_children=int32([child.row]),
        token_rows=int32([child.row]),
        token_values=int32(parent.output),
    )
    driver.worker.execute(plan)
    child.length, child.blocks = parent.length, list(parent.blocks)
    for token in tiny.greedy([1, 2, 3], 4)[1:]:
        assert list(driver.step([parent, child]).tokens) == [token] * 2


def test_a_plan_that_reaches_beyond_the_pool_changes_nothing(tiny: TinyModel) -> None:
    worker = load_worker(tiny.config(num_blocks=33))
    before = worker.pool.kv.clone()
    for block in (-1, 33):
        plan = StepPlan(step=0, copy_sources=int32([0]), copy_destinations=int32([block]))
        with pytest.raises(InvariantViolated, match="beyond"):
            worker.execute(plan)
    assert torch.equal(worker.pool.kv, before)


def test_a_pool_of_one_block_has_no_block_to_copy_before_the_start(tiny: TinyModel) -> None:
    config = tiny.config(num_blocks=1, block_size=16, max_model_len=16, max_num_seqs=1)
    driver = Driver(loader(HostRuntime(captures=True))(config))
    row = driver.admit([1, 2, 3])
    driver.prefill(row, 3)
    assert driver.generate(row, 4) == tiny.greedy([1, 2, 3], 4)


def test_release_of_a_free_row_and_admission_of_a_used_one_are_refused(tiny: TinyModel) -> None:
    worker = load_worker(tiny.config())
    with pytest.raises(InvariantViolated, match="free row"):
        worker.execute(StepPlan(step=0, releases=int32([2])))
    driver = Driver(worker)
    row = driver.admit([1])
    admitting = driver.plan([], [])
    worker.execute(admitting)
    with pytest.raises(InvariantViolated, match=f"in use.*{row.row}"):
        worker.execute(admitting)


def test_threads_are_those_of_the_configuration(tiny: TinyModel) -> None:
    load_worker(tiny.config(num_threads=2))
    assert torch.get_num_threads() == 2
    load_worker(tiny.config(num_threads=1))
    assert torch.get_num_threads() == 1
