import asyncio

import pytest

from app.ui.stress import ACCOUNT, Stress, StressIsOn
from engine.errors import Overloaded
from engine.runtime.protocol import EngineClient
from engine.types import SamplingParams, Terms
from tests.fakes.loop_clock import LoopClock, settle


class _Stream:
    def __init__(self, owner: "Engines") -> None:
        self._owner = owner

    def __aiter__(self) -> "_Stream":
        return self

    async def __anext__(self) -> object:
        await asyncio.Event().wait()
        raise StopAsyncIteration

    async def abort(self) -> None:
        self._owner.num_open -= 1


class Engines:
    """Takes requests that never end, or refuses all."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.num_open = 0
        self.asked: list[tuple[list[int], SamplingParams, bytes, Terms]] = []
        self._refuses = refuses

    async def submit(
        self, prompt: list[int], sampling: SamplingParams, *, salt: bytes, terms: Terms
    ) -> _Stream:
        self.asked.append((list(prompt), sampling, salt, terms))
        if self._refuses:
            raise Overloaded("full", retry_after_s=1.0)
        self.num_open += 1
        return _Stream(self)


def stress_of(engines: Engines) -> Stress:
    client: EngineClient = engines  # type: ignore[assignment]
    return Stress(client, vocab_size=100, max_model_len=256)


async def test_a_burst_has_samples_forks_searches_and_common_beginnings() -> None:
    engines = Engines()
    stress = stress_of(engines)
    stress.start(32, 20.0)
    await settle()
    assert engines.num_open == 32
    assert {terms.account for *_, terms in engines.asked} == {ACCOUNT}
    assert {salt for _, _, salt, _ in engines.asked} == {ACCOUNT}
    for prompt, sampling, *_ in engines.asked:
        assert len(prompt) + sampling.max_tokens <= 256
        assert max(prompt) < 100
    assert {sampling.n for _, sampling, *_ in engines.asked} == {1, 4}
    assert {sampling.beam_width for _, sampling, *_ in engines.asked} == {0, 4}
    heads = [tuple(prompt[:16]) for prompt, *_ in engines.asked[::3]]
    assert len(set(heads)) == 1
    await stress.stop()
    assert engines.num_open == 0


async def test_there_is_one_burst_at_a_time() -> None:
    stress = stress_of(Engines())
    stress.start(1, 20.0)
    with pytest.raises(StressIsOn):
        stress.start(1, 20.0)
    await stress.stop()
    assert not stress.is_on
    stress.start(1, 20.0)
    await stress.stop()


async def test_what_is_open_after_its_time_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, engines = LoopClock(monkeypatch), Engines()
    stress = stress_of(engines)
    stress.start(4, 5.0)
    await clock.advance(4)
    assert engines.num_open == 4
    await clock.advance(2)
    assert engines.num_open == 0
    assert not stress.is_on


async def test_requests_that_are_refused_end_the_burst_quietly() -> None:
    engines = Engines(refuses=True)
    stress = stress_of(engines)
    stress.start(3, 20.0)
    await settle()
    assert len(engines.asked) == 3
    assert not stress.is_on


async def test_nothing_is_to_be_stopped_before_a_burst() -> None:
    await stress_of(Engines()).stop()
