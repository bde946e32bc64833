"""What one rank makes of plans."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import InvariantViolated
from engine.types import StepPlan, int32
from engine.worker.worker import load_worker
from tests.engine.model.tiny import TinyModel, save_tiny
from tests.engine.worker.plans import GREEDY, Driver

_POISON = 300


@pytest.fixture
def poisoned(tmp_path: Path) -> TinyModel:
    """A model whose embedding of one token is NaN."""
    tiny = save_tiny("mha", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.embed_tokens.weight"][_POISON] = math.nan
    save_file(weights, tmp_path / "model.safetensors")
    return tiny


def test_capacity_follows_the_configuration(tiny: TinyModel) -> None:
    capacity = load_worker(tiny.config(num_blocks=33, block_size=8, max_num_seqs=5)).capacity
    assert (capacity.num_blocks, capacity.block_size, capacity.num_rows) == (33, 8, 5)


def test_plan_that_only_releases_computes_nothing(tiny: TinyModel) -> None:
    driver = Driver(load_worker(tiny.config()))
    row = driver.admit([1, 2])
    driver.prefill(row, 2)
    driver.release(row)
    result = driver.step()
    assert len(result.tokens) == 0
    assert result.elapsed_s > 0


def test_chunk_that_does_not_end_the_prompt_samples_nothing(tiny: TinyModel) -> None:
    driver = Driver(load_worker(tiny.config()))
    row = driver.admit([1, 2, 3, 4])
    assert [len(result.tokens) for result in driver.prefill(row, 2)] == [0, 1]


def test_result_lists_decodes_before_ended_prefills(tiny: TinyModel) -> None:
    driver = Driver(load_worker(tiny.config()))
    first, second, third = (driver.admit([token, token + 1]) for token in (1, 2, 3))
    driver.prefill(first, 2)
    result = driver.step([first], [(second, 1), (third, 2)])
    assert list(result.rows) == [first.row, third.row]


def test_row_released_and_admitted_in_one_plan_starts_anew(tiny: TinyModel) -> None:
    driver = Driver(load_worker(tiny.config()))
    first = driver.admit([5, 6, 7], replace(GREEDY, temperature=5.0, seed=3))
    driver.prefill(first, 8)
    driver.release(first)
    second = driver.admit([8, 9])
    assert second.row == first.row
    driver.prefill(second, 8)
    assert driver.generate(second, 12) == tiny.greedy([8, 9], 12)


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


def test_broken_row_reports_no_token_and_leaves_its_neighbours_alone(poisoned: TinyModel) -> None:
    driver = Driver(load_worker(poisoned.config(block_size=4)))
    sound, broken = driver.admit([1, 2, 3]), driver.admit([1, _POISON, 3])
    driver.step([], [(sound, 3), (broken, 3)])
    assert broken.output == [-1]
    # a plan made ahead may still decode the broken row
    driver.step([sound, broken])
    assert broken.output == [-1, -1]
    driver.release(broken)
    # its blocks hold NaN until they are written again
    heir = driver.admit([4, 5])
    driver.step([sound], [(heir, 2)])
    for _ in range(6):
        driver.step([sound, heir])
    assert sound.output == poisoned.greedy([1, 2, 3], 9)
    assert heir.output == poisoned.greedy([4, 5], 7)


def test_broken_row_that_draws_reports_no_token(poisoned: TinyModel) -> None:
    driver = Driver(load_worker(poisoned.config()))
    filtered = replace(GREEDY, temperature=0.7, top_p=0.9, top_k=5, min_p=0.01, num_logprobs=2)
    row = driver.admit([_POISON], filtered)
    (result,) = driver.prefill(row, 1)
    assert list(result.tokens) == [-1]


def test_decode_of_a_row_without_tokens_is_refused(tiny: TinyModel) -> None:
    driver = Driver(load_worker(tiny.config()))
    with pytest.raises(InvariantViolated, match="decode"):
        driver.step([driver.admit([1])])


def test_prefill_of_a_free_row_is_refused(tiny: TinyModel) -> None:
    driver = Driver(load_worker(tiny.config()))
    row = driver.admit([1])
    driver.plan([], [])
    with pytest.raises(InvariantViolated, match="free rows"):
        driver.step([], [(row, 1)])


def test_decode_beyond_the_longest_sequence_is_refused(tiny: TinyModel) -> None:
    driver = Driver(load_worker(tiny.config(max_model_len=4, block_size=4)))
    row = driver.admit([1, 2, 3])
    driver.prefill(row, 4)
    driver.step([row])
    row.blocks.append(0)
    with pytest.raises(InvariantViolated, match=r"\[4\] decode"):
        driver.step([row])


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
