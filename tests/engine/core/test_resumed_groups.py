"""Requests that go on where a lost engine was: the same output, without a gap or a repeat."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from engine.core.engine import Engine
from engine.types import Progress, Request, SamplingParams, int32
from tests.engine.core.harness.checking_executor import SEED_STRIDE
from tests.engine.core.harness.expectations import can_ever_fit
from tests.engine.core.harness.losing_engine import LosingEngine, ProbationExecutor, equal_to
from tests.engine.core.harness.scheduler_driver import SchedulerDriver
from tests.engine.core.harness.workload import draw_setting
from tests.fakes.symbolic_executor import SymbolicModel

Prompt = tuple[list[int], SamplingParams, bytes]


class Losses:
    """One random workload, run undisturbed and with losses."""

    def __init__(self, seed: int) -> None:
        rng = Random(f"losses {seed}")
        setting = draw_setting(rng)
        model = SymbolicModel(rng.randint(8, 40))
        self.setting = replace(setting, model=model)
        self.prompts = [self._draw(rng, number) for number in range(rng.randint(1, 6))]
        self.num_losses = rng.choice((1, 2, 2, 3))
        self.abort_rate = rng.choice((0.0, 0.1, 0.3))
        self.suspect_rate = rng.choice((0.0, 0.0, 0.3, 1.0))
        self.rng = rng
        self.executors: list[ProbationExecutor] = []
        self.aborted: set[int] = set()

    def run(self) -> LosingEngine:
        undisturbed = self._engine()
        undisturbed.drain()
        lost = self._engine()
        moments = [self.rng.randrange(undisturbed.num_steps) for _ in range(self.num_losses)]
        while lost.has_work:
            if lost.num_steps in moments:
                self._lose(lost)
            if self.rng.random() < self.abort_rate:
                self._abort(lost)
            lost.step()
        lost.drain()
        equal_to(undisturbed, lost, self.aborted)
        return lost

    def _lose(self, engine: LosingEngine) -> None:
        for number in range(len(self.prompts)):
            if self.rng.random() < self.suspect_rate:
                engine.suspects[number] = self.rng.choice((1, 2, 4, 1000))
        engine.lose(self.rng)

    def _abort(self, engine: LosingEngine) -> None:
        number = self.rng.randrange(len(self.prompts))
        sampling = self.prompts[number][1]
        if sampling.n > 1 and not sampling.beam_width:
            self.aborted.add(number)
            engine.abort_choice(number, self.rng.randrange(sampling.n))

    def _engine(self) -> LosingEngine:
        engine = LosingEngine(self._make)
        for prompt, sampling, salt in self.prompts:
            engine.add(int32(prompt), sampling, salt)
        return engine

    def _make(self, on_probation: set[int]) -> Engine:
        executor = ProbationExecutor(self.setting, on_probation)
        self.executors.append(executor)
        config = self.setting.config
        return Engine(config, executor, preemption=self.setting.preemption)

    def _draw(self, rng: Random, number: int) -> Prompt:
        while True:
            prompt, sampling, salt = self._draw_any(rng, number)
            if can_ever_fit(self.setting, len(prompt), sampling):
                return prompt, sampling, salt

    def _draw_any(self, rng: Random, number: int) -> Prompt:
        capacity = self.setting.capacity
        slots = capacity.num_slots
        width = rng.randint(1, min(4, capacity.num_rows))
        prompt_len = rng.randint(1, max(1, min(slots // 4, self.setting.config.max_model_len - 2)))
        kind = rng.choice(("one", "several", "search", "reported"))
        options: dict[str, object] = {"n": 1 if kind == "one" else width}
        if kind in ("search", "reported"):
            options = {
                "beam_width": width,
                "n": rng.randint(1, width),
                "early_stopping": rng.choice((True, False, "never")),
                "length_penalty": rng.choice((0.0, 0.5, 1.0, 2.0)),
                "report_beams": kind == "reported",
            }
        room = max(1, slots // width - prompt_len - capacity.block_size)
        tokens = Random(rng.randint(0, 3))
        sampling = SamplingParams(
            max_tokens=rng.randint(max(1, room // 4), room),
            seed=number * SEED_STRIDE,
            stop_token_ids=tuple(rng.sample(range(40), rng.choice((0, 0, 1, 3)))),
            ignore_eos=rng.random() < 0.6,
            prompt_logprobs=rng.choice((None, None, 0, 2)),
            num_logprobs=rng.choice((None, 0, 2)),
            **options,  # type: ignore[arg-type]
        )
        prompt = [tokens.randrange(40) for _ in range(prompt_len)]
        return prompt, sampling, rng.choice((b"", b"other tenant"))


KINDS = {
    "nothing", "a part of the prompt", "one choice", "several choices", "an end",
    "an end before the beginning", "beams", "alternatives of beams", "probation",
}  # fmt: skip


def run_losses(num_seeds: int) -> None:
    resumed: Counter[str] = Counter()
    num_solo_steps = num_cleared = 0
    for seed in range(num_seeds):
        losses = Losses(seed)
        lost = losses.run()
        resumed += lost.resumed
        num_cleared += lost.num_cleared
        num_solo_steps += sum(each.num_solo_steps for each in losses.executors)
    assert resumed.keys() == KINDS
    assert min(resumed.values()) > 1
    assert num_solo_steps > 100
    assert num_cleared > 20


def test_whatever_is_lost_readers_get_the_same_and_pools_end_empty() -> None:
    run_losses(120)


@pytest.mark.slow
def test_many_more_losses() -> None:
    run_losses(2000)


def test_a_request_on_probation_waits_for_every_plan_of_others() -> None:
    driver = SchedulerDriver()
    driver.add(0, prompt_len=1, stop_token_ids=(7,))
    suspect = Request(
        request_id=1,
        prompt=int32([1]),
        sampling=SamplingParams(max_tokens=9),
        progress=Progress(solo_tokens=9),
    )
    driver.schedule()
    driver.scheduler.add(suspect)
    # this plan wastes a row, since the first token ends the request
    assert not driver.schedule().admissions
    driver.update()
    assert driver.scheduler.schedule() is None
    driver.update()
    driver.add(2, prompt_len=1)
    # now it enters, and others wait for its end
    assert len(driver.schedule().admissions) == 1
    driver.update()
    assert not driver.schedule().admissions
