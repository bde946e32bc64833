"""Rows of the batch from their admission to their release."""

import numpy as np
import pytest
import torch

from engine.errors import InvariantViolated
from engine.types import RowAdmission, SamplingParams, int32
from engine.worker.row_table import RowParameters
from engine.worker.staging import ALIGNMENT_BYTES, Int32Array
from kernels.batch import SMALLEST_TEMPERATURE, SamplingColumns
from tests.engine.rows import BLOCK_SIZE, NUM_POSITIONS, admission, make_table


def _rows(*rows: int) -> Int32Array:
    return np.array(rows, np.int32)


def _columns(parameters: RowParameters, *rows: int) -> SamplingColumns:
    where = torch.tensor(rows)
    return parameters.columns(where, where, num_logprobs=-1, all_greedy=False, any_filter=True)


def test_there_is_one_row_more_on_the_device_and_blocks_for_the_longest_sequence() -> None:
    table = make_table(3)
    assert table.padding_row == 3
    assert table.lengths.tolist() == [-1, -1, -1]
    assert len(table.last_tokens) == len(table.block_tables) == 4
    assert len(table.parameters.temperature) == len(table.parameters.seeds) == 4
    assert table.block_tables.shape[1] >= NUM_POSITIONS / BLOCK_SIZE
    assert table.block_tables[0].nbytes % ALIGNMENT_BYTES == 0


def test_an_admitted_row_begins_with_the_length_that_is_computed_already() -> None:
    table = make_table(3)
    table.admit([admission(2, length=9), admission(0)])
    assert table.lengths.tolist() == [0, -1, 9]


def test_an_admitted_row_is_chosen_for_as_its_sequence_wants() -> None:
    table = make_table(3)
    table.admit([admission(2, temperature=0.5, logit_bias=((1, 2.0),), known=[4, 5])])
    assert table.parameters.is_random.tolist() == [False, False, True]
    assert table.rules.is_active.tolist() == [False, False, True]
    assert table.history.tokens[2, :2].tolist() == [4, 5]


@pytest.mark.parametrize("temperature", [5e-324, 1e-38, 0.9 * SMALLEST_TEMPERATURE])
def test_a_row_of_tiny_temperature_draws_nothing(temperature: float) -> None:
    table = make_table(2)
    table.admit([admission(0, temperature=temperature), admission(1, temperature=1e-14)])
    assert table.parameters.is_random.tolist() == [False, True]


def test_a_released_row_is_free_to_be_admitted_again() -> None:
    table = make_table(3)
    table.admit([admission(row, length=5) for row in range(3)])
    table.release(_rows(0, 2))
    assert table.lengths.tolist() == [-1, 5, -1]
    table.admit([admission(2, length=1)])
    assert table.lengths.tolist() == [-1, 5, 1]


def test_a_row_that_has_sampled_nothing_is_fed_a_valid_token() -> None:
    table = make_table(3)
    table.last_tokens.fill_(9)
    table.keep_sampled(torch.tensor([2, 0]), torch.tensor([5, -1]))
    assert table.last_tokens.tolist() == [0, 9, 5, 9]


def test_a_free_row_is_not_released_and_a_row_in_use_not_admitted() -> None:
    table = make_table(3)
    table.admit([admission(1)])
    with pytest.raises(InvariantViolated, match=r"a free row is released: \[1, 2\]"):
        table.release(_rows(1, 2))
    with pytest.raises(InvariantViolated, match=r"a row in use is admitted: \[0, 1\]"):
        table.admit([admission(0), admission(1)])


def test_a_fork_copies_length_block_table_and_tokens_of_the_parent() -> None:
    table = make_table(4)
    table.admit([admission(0, length=6, known=[3, 1, 4, 1, 5, 9], presence_penalty=1.0)])
    table.admit([admission(row, presence_penalty=1.0) for row in (1, 2)])
    table.block_tables[0, :2] = torch.tensor([70, 71])
    table.fork(_rows(0, 0), _rows(1, 2))
    assert table.lengths.tolist() == [6, 6, 6, -1]
    assert table.block_tables[:4, :2].tolist() == [[70, 71], [70, 71], [70, 71], [0, 0]]
    assert table.history.tokens[2, :6].tolist() == [3, 1, 4, 1, 5, 9]


def test_each_group_of_layers_has_block_tables_of_its_own() -> None:
    table = make_table(3, windows=(0, 16))
    table.admit([admission(0), admission(1)])
    # logical blocks 0 and 1 of both groups, interleaved, then one of the other row
    rows, columns = table.places(int32([0, 0, 0, 0, 2]), int32([0, 1, 2, 3, 5]))
    table.block_tables[rows, columns] = torch.tensor([7, 8, 9, 10, 11], dtype=torch.int32)
    table.fork(_rows(0), _rows(1))
    first, second = (tables[:3, :3].tolist() for tables in table.by_group)
    assert first == [[7, 9, 0], [7, 9, 0], [0, 0, 0]]
    assert second == [[8, 10, 0], [8, 10, 0], [0, 0, 11]]
    assert all(len(tables) == 4 for tables in table.by_group)


def test_parameters_of_a_row_reach_the_device() -> None:
    parameters = make_table(3).parameters
    sampling = SamplingParams(
        max_tokens=1, temperature=0.5, top_p=0.75, min_p=0.25, top_k=7, seed=40
    )
    parameters.set([2, 0], [RowAdmission(row=2, sampling=sampling, choice=3), admission(0)])
    columns = _columns(parameters, 2, 0)
    assert columns.temperature.tolist() == [0.5, 0.0]
    assert columns.top_p.tolist() == [0.75, 1.0]
    assert columns.min_p.tolist() == [0.25, 0.0]
    assert columns.top_k.tolist() == [7, 0]
    # each choice of a request draws with a seed of its own
    assert columns.seeds.tolist() == [43, 0]


@pytest.mark.parametrize("seed", [0, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64])
def test_a_seed_keeps_its_lower_64_bits(seed: int) -> None:
    parameters = make_table(1).parameters
    parameters.set([0], [admission(0, seed=seed)])
    assert parameters.seeds[0].item() % (1 << 64) == seed % (1 << 64)


def test_what_rows_want_is_known_on_the_host() -> None:
    parameters = make_table(6).parameters
    rows = [
        admission(0, temperature=0.5),
        admission(1, temperature=0.5, top_k=3),
        admission(2, temperature=0.5, top_p=0.9),
        admission(3, temperature=0.5, min_p=0.1),
        admission(4, num_logprobs=0, prompt_logprobs=0, prompt_len=7, deterministic=True),
        admission(5, beam_width=2, n=2, num_logprobs=4, frequency_penalty=0.5),
    ]
    parameters.set(list(range(6)), rows)
    assert parameters.is_random.tolist() == [True, True, True, True, False, False]
    assert parameters.is_filtered.tolist() == [False, True, True, True, False, False]
    assert parameters.num_logprobs.tolist() == [-1, -1, -1, -1, 0, 4]
    assert parameters.num_prompt_logprobs.tolist() == [-1, -1, -1, -1, 0, -1]
    assert parameters.prompt_lens.tolist() == [0, 0, 0, 0, 7, 0]
    assert np.flatnonzero(parameters.is_deterministic).tolist() == [4]
    assert np.flatnonzero(parameters.is_search).tolist() == [5]
    assert parameters.is_capturable.tolist() == [True, True, True, True, False, False]


def test_only_what_the_flags_ask_for_is_gathered() -> None:
    parameters = make_table(2).parameters
    parameters.set([1], [admission(1, temperature=0.5, top_k=3, seed=8)])
    where = torch.tensor([1])
    drawing = parameters.columns(where, where, num_logprobs=2, all_greedy=False, any_filter=False)
    assert (drawing.temperature.tolist(), drawing.seeds.tolist()) == ([0.5], [8])
    assert (drawing.num_logprobs, drawing.all_greedy, drawing.any_filter) == (2, False, False)
    filtering = parameters.columns(where, where, num_logprobs=-1, all_greedy=True, any_filter=True)
    assert filtering.top_k.tolist() == [3]
    assert len(filtering.temperature) == 1
