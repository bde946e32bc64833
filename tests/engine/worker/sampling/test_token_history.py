"""Tokens of the rows whose next token depends on them."""

import numpy as np
import torch

from engine.worker.sampling.token_history import TokenHistory
from engine.worker.staging import Int32Array
from kernels.runtime import HostRuntime
from tests.engine.rows import admission


def _rows(*rows: int) -> Int32Array:
    return np.array(rows, np.int32)


def _history() -> TokenHistory:
    """Rows 0 and 1 are kept, row 2 is not."""
    history = TokenHistory(4, 6, HostRuntime())
    history.admit(
        [
            admission(0, known=[5, 6, 7], frequency_penalty=1.0),
            admission(1, frequency_penalty=1.0),
            admission(2),
        ]
    )
    return history


def test_known_tokens_are_taken_over_from_the_first_position_on() -> None:
    assert _history().tokens[0].tolist() == [5, 6, 7, 0, 0, 0]


def test_a_token_is_noted_at_its_position_where_its_row_is_kept() -> None:
    history = _history()
    history.note(
        _rows(2, 1, 1, 0), _rows(4, 0, 1, 3), torch.tensor([9, 0, 21, 22, 8]), _rows(0, 2, 3, 4)
    )
    assert history.tokens.tolist() == [
        [5, 6, 7, 8, 0, 0],
        [21, 22, 0, 0, 0, 0],
        [0] * 6,
        [0] * 6,
    ]


def test_a_row_is_kept_no_longer_than_its_sequence() -> None:
    history = _history()
    history.admit([admission(0)])
    history.note(_rows(0), _rows(1), torch.tensor([33]), _rows(0))
    assert history.tokens[0].tolist() == [5, 6, 7, 0, 0, 0]


def test_a_child_gets_the_tokens_of_its_parent() -> None:
    history = _history()
    history.fork(_rows(0), _rows(3))
    assert history.tokens[3].tolist() == history.tokens[0].tolist() == [5, 6, 7, 0, 0, 0]


def test_no_memory_is_taken_before_a_row_is_kept() -> None:
    history = TokenHistory(4, 6, HostRuntime())
    history.admit([admission(0)])
    history.fork(_rows(0), _rows(1))
    history.note(_rows(0), _rows(0), torch.tensor([9]), _rows(0))
    assert history._tokens is None
    assert history.tokens.shape == (4, 6)
