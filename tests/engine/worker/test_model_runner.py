"""What a rank computes for a batch, by a graph or kernel by kernel."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import engine.worker.worker
from engine.errors import InvariantViolated
from engine.types import RowAdmission, int32, int64
from engine.worker.swap import arriving_blocks
from engine.worker.worker import load_worker
from kernels.runtime import HostRuntime
from tests.engine.model.tiny import TinyModel, save_tiny
from tests.engine.whole.engine_run import SWAP_BYTES
from tests.engine.worker.plans import GREEDY, Driver
from tests.fakes.worker_loader import LateRuntime, loader

_POISON = 300


@pytest.fixture
def poisoned(tmp_path: Path) -> TinyModel:
    """A model whose embedding of one token is NaN."""
    tiny = save_tiny("mha", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.embed_tokens.weight"][_POISON] = math.nan
    save_file(weights, tmp_path / "model.safetensors")
    return tiny


def test_chunk_that_does_not_end_the_prompt_samples_nothing(tiny: TinyModel) -> None:
    driver = Driver(load_worker(tiny.config()))
    row = driver.admit([1, 2, 3, 4])
    assert [len(result.tokens) for result in driver.prefill(row, 2)] == [0, 1]


def test_a_row_is_as_long_as_what_was_computed_of_it(tiny: TinyModel) -> None:
    driver = Driver(load_worker(tiny.config()))
    row = driver.admit([1, 2, 3, 4])
    for num_tokens, length in ((1, 1), (2, 3), (1, 4)):
        driver.step(prefills=[(row, num_tokens)])
        assert driver.worker._table.lengths[row.row] == length


def test_result_lists_decodes_before_ended_prefills(tiny: TinyModel) -> None:
    driver = Driver(load_worker(tiny.config()))
    first, second, third = (driver.admit([token, token + 1]) for token in (1, 2, 3))
    driver.prefill(first, 2)
    result = driver.step([first], [(second, 1), (third, 2)])
    assert list(result.rows) == [first.row, third.row]


@pytest.mark.parametrize("captures", [False, True])
def test_a_sibling_goes_on_behind_the_prompt_of_its_parent(tiny: TinyModel, captures: bool) -> None:
    """Both write the same keys and values into the block that they share."""
    driver = Driver(loader(HostRuntime(captures=captures))(tiny.config(block_size=8)))
    parent, sibling = driver.admit([1, 2, 3]), driver.admit([1, 2, 3])
    plan = replace(
        driver.plan([], [(parent, 3)]),
        append_rows=int32([parent.row, sibling.row]),
        append_indices=int32([0, 0]),
        append_blocks=int32(parent.blocks * 2),
        sibling_rows=int32([sibling.row]),
        sibling_parents=int32([parent.row]),
    )
    result = driver.worker.execute(plan)
    expected = tiny.greedy([1, 2, 3], 4)
    assert list(result.rows) == [parent.row, sibling.row]
    assert list(result.tokens) == expected[:1] * 2
    sibling.length, sibling.blocks = parent.length, list(parent.blocks)
    for token in expected[1:]:
        result = driver.step([sibling, parent])
        assert list(result.rows) == [sibling.row, parent.row]
        assert list(result.tokens) == [token] * 2


def test_rules_know_the_tokens_that_were_fed(tiny: TinyModel) -> None:
    """The driver says nothing of prompts, so that all tokens count as output."""
    driver = Driver(load_worker(tiny.config()))
    row = driver.admit([17, 4, 17], replace(GREEDY, frequency_penalty=2.0))
    driver.prefill(row, 2)
    driver.generate(row, 8)
    for length in range(3, len(row.tokens)):
        known = row.tokens[:length]
        scores = tiny.logprobs(known)[-1].clone()
        for token in known:
            scores[token] -= 2.0
        assert row.tokens[length] == int(scores.argmax())


def test_log_probabilities_of_prompts_come_after_sampled_tokens(tiny: TinyModel) -> None:
    driver = Driver(load_worker(tiny.config()))
    wanted = replace(GREEDY, prompt_logprobs=0, num_logprobs=2)
    row = driver.admit([7, 8, 9])
    admission = RowAdmission(
        row=row.row, sampling=wanted, prompt_len=3, known_tokens=int32([7, 8, 9])
    )
    plan = driver.plan([], [(row, 3)])
    result = driver.worker.execute(replace(plan, admissions=[admission]))
    expected = tiny.logprobs([7, 8, 9])
    assert list(result.rows) == [row.row] * 3
    assert list(result.tokens) == [*tiny.greedy([7, 8, 9], 1), 8, 9]
    assert list(result.top_counts) == [2, 0, 0]
    chosen = torch.tensor([expected[2].max(), expected[0, 8], expected[1, 9]])
    torch.testing.assert_close(torch.tensor(result.logprobs), chosen, atol=1e-4, rtol=0)


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


@pytest.mark.parametrize("fewest_tokens", [3, 4])
def test_what_comes_back_is_there_when_a_layer_reads_it(
    tiny: TinyModel, fewest_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts, beside the layers, and as a whole, before a graph."""
    monkeypatch.setattr(arriving_blocks, "_FEWEST_PART_BYTES", 1)
    monkeypatch.setattr(engine.worker.worker, "_FEWEST_FED_IN_PARTS", fewest_tokens)
    load = loader(LateRuntime(captures=True))
    driver = Driver(load(tiny.config(block_size=4, swap_bytes=SWAP_BYTES)))
    pool, prompt = driver.worker.pool, list(range(7, 18))
    first = driver.admit(prompt)
    driver.prefill(first, 11)
    slots, keys = int32([0, 1]), int64(list(range(8)))
    pool.swap_out(int32(first.blocks[:2]), slots, keys)
    pool.kv.fill_(math.nan)
    second = driver.admit(prompt)
    second.length, second.blocks = 8, [driver.free_blocks.pop() for _ in range(2)]
    plan = driver.plan([], [(second, 3)])
    plan = replace(
        plan,
        append_rows=int32([second.row] * 3),
        append_indices=int32([0, 1, 2]),
        append_blocks=int32(second.blocks),
        swap_in_sources=slots,
        swap_in_destinations=int32(second.blocks[:2]),
        swap_in_keys=keys,
    )
    result = driver.worker.execute(plan)
    assert list(result.tokens) == tiny.greedy(prompt, 1)
    assert not result.spoiled_slots
