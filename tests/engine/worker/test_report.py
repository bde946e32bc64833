"""What a step has chosen, as columns of its result."""

import math

import numpy as np
import torch

from engine.types import StepResult, int32
from engine.worker.report import PendingStep, SampledRows, SwappedIn
from kernels.batch import Sampled
from kernels.runtime import HostRuntime


def _result(*parts: SampledRows) -> StepResult:
    runtime = HostRuntime()
    return PendingStep(7, parts, runtime, runtime.mark()).result()


def _part(sampled: Sampled, rows: list[int], num_logprobs: list[int]) -> SampledRows:
    return SampledRows(sampled, np.array(rows, np.int32), np.array(num_logprobs, np.int32))


def _with_tops(num_tops: int) -> Sampled:
    """Three rows, the second of which is broken."""
    tops = torch.arange(3 * num_tops).view(3, num_tops)
    return Sampled(
        tokens=torch.tensor([40, -1, 42]),
        logprobs=torch.tensor([-1.0, -2.0, -3.0]),
        top_tokens=tops,
        top_logprobs=-tops.float(),
    )


def test_each_row_gets_as_many_alternatives_as_it_wants() -> None:
    result = _result(_part(_with_tops(3), [5, 6, 7], [2, -1, 3]))
    assert result.step == 7
    assert list(result.rows) == [5, 6, 7]
    assert list(result.tokens) == [40, -1, 42]
    assert list(result.top_counts) == [2, 0, 3]
    assert list(result.top_tokens) == [0, 1, 6, 7, 8]
    assert list(result.top_logprobs) == [0, -1, -6, -7, -8]


def test_only_rows_that_want_them_get_log_probabilities() -> None:
    result = _result(_part(_with_tops(2), [5, 6, 7], [0, -1, 1]))
    assert result.logprobs[0] == -1.0
    assert math.isnan(result.logprobs[1])
    assert result.logprobs[2] == -3.0


def test_no_row_gets_more_alternatives_than_there_are() -> None:
    result = _result(_part(_with_tops(2), [5, 6, 7], [9, 0, 1]))
    assert list(result.top_counts) == [2, 0, 1]
    assert list(result.top_tokens) == [0, 1, 4]


def test_tokens_are_known_before_the_result_is_taken() -> None:
    runtime = HostRuntime()
    swapped_in = SwappedIn(int32([3]), torch.tensor([True]))
    plain = Sampled(tokens=torch.tensor([8, 9]))
    parts = [_part(plain, [1, 2], [-1, -1]), _part(_with_tops(1), [5, 6, 7], [1, 0, 1])]
    step = PendingStep(7, parts, runtime, runtime.mark(), swapped_in=swapped_in)
    assert step.tokens() == [8, 9, 40, -1, 42]
    assert list(step.result().tokens) == step.tokens()


def test_parts_follow_each_other() -> None:
    plain = Sampled(tokens=torch.tensor([8, 9]))
    result = _result(_part(plain, [1, 2], [-1, -1]), _part(_with_tops(1), [5, 6, 7], [1, 0, 1]))
    assert list(result.rows) == [1, 2, 5, 6, 7]
    assert list(result.tokens) == [8, 9, 40, -1, 42]
    assert list(result.top_counts) == [0, 0, 1, 0, 1]
    assert list(result.top_tokens) == [0, 2]
    assert np.isnan(result.logprobs[:2]).all()


def test_without_alternatives_there_is_no_column_of_counts() -> None:
    result = _result(_part(_with_tops(2), [5, 6, 7], [-1, 0, -1]))
    assert (len(result.top_counts), len(result.top_tokens), len(result.top_logprobs)) == (0, 0, 0)


def test_a_step_that_chooses_nothing_has_a_result_nevertheless() -> None:
    result = _result()
    assert (result.step, len(result.rows), len(result.tokens)) == (7, 0, 0)
    assert result.elapsed_s > 0
