"""The arithmetic that all systems share."""

import asyncio
from collections.abc import Sequence
from statistics import fmean

import pytest
from torch.nn import LayerNorm, Linear, Module, ModuleDict

from load_tests.bench.peers.measures import Beam, Decode, Offline, Online
from load_tests.bench.peers.system import Timeline, arrivals, draw_weights, is_modern, take
from load_tests.traffic.lognormal import draw_pairs
from load_tests.work import Work

OFFLINE = Offline(trace="alpaca", num_requests=5, seed=0)
DECODE = Decode(batch=2, input_len=8, output_len=4, seed=0)
BEAM = Beam(width=3, num_prompts=2, input_len=8, output_len=4, seed=0)
ONLINE = Online(trace="alpaca", rate_per_s=20.0, duration_s=0.5, seed=0)


class FakeSystem:
    """Answers at once, a token every 10 ms on a clock of its own."""

    def __init__(self, num_missing: int = 0) -> None:
        self.facts: dict[str, object] = {"name": "fake"}
        self.works: list[Work] = []
        self._num_missing = num_missing

    def generate(self, works: Sequence[Work]) -> int:
        self.works += works
        return sum(work.output_len for work in works) - self._num_missing

    def search(self, prompts: Sequence[list[int]], width: int, output_len: int) -> int:
        return len(prompts) * width * output_len

    async def serve(self, works: Sequence[Work]) -> list[Timeline]:
        return [Timeline(w, [w.due_s + 0.5 + 0.01 * i for i in range(w.output_len)]) for w in works]

    def close(self) -> None:
        pass


def test_every_request_of_a_trace_is_asked_for_its_own_length() -> None:
    system = FakeSystem()
    figures = asyncio.run(take(system, OFFLINE))
    pairs = draw_pairs("alpaca", 5, 0)
    assert [(len(work.prompt), work.output_len) for work in system.works] == pairs
    assert len({tuple(work.prompt[:4]) for work in system.works}) == 5
    num_tokens = sum(output for _, output in pairs)
    assert figures["output_tokens_per_s"] == pytest.approx(num_tokens / figures["wall_s"])


@pytest.mark.parametrize("num_missing", [1, -1])
def test_a_system_that_does_other_work_is_not_measured(num_missing: int) -> None:
    with pytest.raises(ValueError, match="tokens, not"):
        asyncio.run(take(FakeSystem(num_missing), OFFLINE))


def test_steps_are_timed_without_the_first_batch_and_the_ends_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class ColdSystem(FakeSystem):
        now_s = 0.0
        longest = num_longest = 0

        def generate(self, works: Sequence[Work]) -> int:
            # as a system that compiles what decodes when it first decodes, and whose answers begin
            # and end one after the other
            output_len = works[0].output_len
            self.now_s += 0.3 + 0.01 * output_len + (5.0 if output_len > self.longest else 0)
            self.now_s += 0.2 if output_len > 1 else 0
            # and with one that takes long for once, as when it compiles what only this batch needs
            self.num_longest += output_len == self.longest
            self.now_s += 1.4 if self.num_longest == 1 else 0
            self.longest = max(self.longest, output_len)
            return super().generate(works)

    system = ColdSystem()
    monkeypatch.setattr("load_tests.bench.peers.system.time.perf_counter", lambda: system.now_s)
    figures = asyncio.run(take(system, DECODE))
    assert figures["step_s"] == pytest.approx(0.01)
    assert figures["prefill_s"] == pytest.approx(0.31)


def test_latencies_count_from_the_due_time_and_between_tokens() -> None:
    figures = asyncio.run(take(FakeSystem(), ONLINE))
    assert figures["ttft_p50_s"] == pytest.approx(0.5)
    assert figures["itl_p99_s"] == pytest.approx(0.01)
    works = arrivals(ONLINE)
    expected = fmean((0.5 + 0.01 * (w.output_len - 1)) / w.output_len for w in works)
    assert figures["normalized_latency_s"] == pytest.approx(expected)
    assert all(0 < work.due_s < 0.5 for work in works)


def test_prompts_of_today_begin_alike_at_one_rate_only() -> None:
    measures = [
        Online(trace="system-prompts", rate_per_s=rate, duration_s=20 / rate, seed=0)
        for rate in (2.0, 4.0)
    ]
    assert all(is_modern(measure) for measure in measures)
    assert not is_modern(ONLINE)
    starts = [{tuple(work.prompt[:1024]) for work in arrivals(measure)} for measure in measures]
    assert [len(prompts) for prompts in starts] == [4, 4]
    assert len(starts[0] | starts[1]) == 8
    assert len({tuple(work.prompt[1024:]) for work in arrivals(measures[0])}) == 20


def test_single_tokens_have_nothing_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "load_tests.bench.peers.system.draw_pairs", lambda _, count, seed: [(4, 1)] * count
    )
    figures = asyncio.run(take(FakeSystem(), ONLINE))
    assert (figures["itl_p50_s"], figures["itl_p999_s"]) == (0.0, 0.0)
    assert figures["normalized_latency_s"] == pytest.approx(0.5)


def test_norms_are_near_1_and_all_else_near_0() -> None:
    model: Module = ModuleDict({"q_norm": LayerNorm(256), "gate": Linear(64, 64)})
    draw_weights(model)
    means = {name: weight.mean().item() for name, weight in model.named_parameters()}
    assert {name: round(mean, 1) + 0 for name, mean in means.items()} == {
        "q_norm.weight": 1, "q_norm.bias": 0, "gate.weight": 0, "gate.bias": 0,
    }  # fmt: skip
