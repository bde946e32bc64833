from dataclasses import dataclass, field

import pytest

from load_tests.bench.peers.cpu_comparison import (
    Agreement,
    EqualWork,
    Timing,
    Timings,
    agreement,
    measure,
    rates,
)

WORK = EqualWork(batches=(1, 3), repeats=2, input_len=4, output_len=5, vocab_size=50, seed=0)


@dataclass
class Repeating:
    """Answers with the prompt's last token over and over, or one token short."""

    name: str = "repeating"
    short: bool = False
    shift: int = 0
    calls: list[list[list[int]]] = field(default_factory=list)

    def generate(self, prompts: list[list[int]], output_len: int) -> list[list[int]]:
        self.calls.append(prompts)
        return [[prompt[-1] + self.shift] * (output_len - self.short) for prompt in prompts]


def test_every_batch_is_warmed_up_and_every_repeat_has_prompts_of_its_own() -> None:
    system = Repeating()
    turns = measure(system, WORK)
    assert [len(prompts) for prompts in system.calls] == [1, 1, 1, 3, 3, 3]
    assert len({tuple(prompts[0]) for prompts in system.calls[:3]}) == 3
    assert [(turn.batch, len(turn.timings)) for turn in turns] == [(1, 2), (3, 2)]


def test_all_measurements_of_a_system_are_taken_together() -> None:
    first = Timings(system="s", batch=3, timings=(Timing(1.0, 0.5), Timing(2.0, 1.0)))
    again = Timings(system="s", batch=3, timings=(Timing(10.0, 2.0),))
    rate = rates([first, again], WORK)[3, "s"]
    assert (rate.median, rate.low, rate.high) == (7.5, 1.5, 15.0)
    assert rate.cpu_median == 15.0


def test_cpu_time_of_the_work_is_counted() -> None:
    timings = [timing for one in measure(Repeating(), WORK) for timing in one.timings]
    assert all(timing.wall_s > 0 and timing.cpu_s > 0 for timing in timings)


def test_answers_of_another_length_are_no_measurement() -> None:
    with pytest.raises(ValueError, match=r"answers of \{4\} tokens, not 5"):
        measure(Repeating(short=True), WORK)


def test_agreement_counts_equal_answers() -> None:
    assert agreement(Repeating(), Repeating(), WORK) == Agreement(equal=4, compared=4)
    assert agreement(Repeating(), Repeating(shift=1), WORK) == Agreement(equal=0, compared=4)
