"""Choices that another thread makes, between the steps before and behind them."""

from collections.abc import Callable, Iterator, Sequence
from threading import Event

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.worker.report import PendingStep
from engine.worker.sampling.late_choices import LateChoices
from kernels.batch import Sampled
from kernels.runtime import Fetch, Fetched, HostRuntime


class _NoticingRuntime(HostRuntime):
    """Notes that somebody waits for what has been sampled."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = Event()

    def fetch(self, tensors: Sequence[Tensor | None], since: object) -> Fetch:
        return _NoticedFetch(super().fetch(tensors, since), self.asked)


class _NoticedFetch:
    def __init__(self, fetch: Fetch, asked: Event) -> None:
        self._fetch, self._asked = fetch, asked

    def wait(self) -> Fetched:
        self._asked.set()
        return self._fetch.wait()


@pytest.fixture
def runtime() -> _NoticingRuntime:
    return _NoticingRuntime()


@pytest.fixture
def late(runtime: _NoticingRuntime) -> Iterator[LateChoices]:
    choices = LateChoices(runtime)
    yield choices
    choices.close()


def _choose(step: PendingStep, token: int) -> None:
    one = np.array([0], np.int32)
    step.add(Sampled(tokens=torch.tensor([token])), one, one - 1)


def test_a_choice_completes_its_step_while_others_go_on(
    runtime: _NoticingRuntime, late: LateChoices
) -> None:
    may_choose, step = Event(), PendingStep(1, runtime)

    def choose(begun: Callable[[], None]) -> None:
        assert may_choose.wait(10)
        begun()
        _choose(step, 5)
        # other threads track gradients, which would take memory
        assert torch.is_inference_mode_enabled()

    late.begin(step, choose)
    may_choose.set()
    late.wait()
    assert step.tokens() == [5]
    assert list(step.result().tokens) == [5]


def test_a_step_gives_its_result_when_the_choice_behind_it_is_under_way(
    runtime: _NoticingRuntime, late: LateChoices
) -> None:
    has_result = Event()
    noticed = []

    def choose(begun: Callable[[], None]) -> None:
        assert runtime.asked.wait(10)
        noticed.append(has_result.wait(0.1))
        begun()
        assert has_result.wait(10)
        _choose(second, 6)

    first, second = PendingStep(1, runtime), PendingStep(2, runtime)
    _choose(first, 5)
    late.begin(first, None)
    late.begin(second, choose)
    assert list(first.result().tokens) == [5]
    has_result.set()
    assert list(second.result().tokens) == [6]
    assert noticed == [False]


def test_an_error_of_a_choice_ends_its_step_and_the_next_but_not_the_one_before(
    runtime: _NoticingRuntime, late: LateChoices
) -> None:
    def choose(begun: Callable[[], None]) -> None:
        raise ValueError("no mask")

    first, second = PendingStep(1, runtime), PendingStep(2, runtime)
    _choose(first, 5)
    late.begin(first, None)
    late.begin(second, choose)
    assert list(first.result().tokens) == [5]
    for wait in (second.tokens, second.result, late.wait):
        with pytest.raises(ValueError, match="no mask"):
            wait()
