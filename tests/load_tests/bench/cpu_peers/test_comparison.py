from dataclasses import dataclass, field

import pytest

from load_tests.bench.cpu_peers.comparison import Agreement, Workload, agreement, measure, speed_of

WORK = Workload(batches=(1, 3), repeats=2, input_len=4, output_len=5, vocab_size=50, seed=0)


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
    turns = measure(system, WORK, lambda _: None)
    assert [len(prompts) for prompts in system.calls] == [1, 1, 1, 3, 3, 3]
    assert len({tuple(prompts[0]) for prompts in system.calls[:3]}) == 3
    assert [(turn.batch, len(turn.timings)) for turn in turns] == [(1, 2), (3, 2)]


def test_the_turns_of_a_system_are_taken_together() -> None:
    turns = measure(Repeating(), WORK, lambda _: None) + measure(Repeating(), WORK, lambda _: None)
    both = speed_of(turns, "repeating", 3, WORK.output_len)
    rates = [15 / t.wall_s for turn in turns if turn.batch == 3 for t in turn.timings]
    assert (both.low, both.high) == (min(rates), max(rates))


def test_answers_of_another_length_are_no_measurement() -> None:
    with pytest.raises(ValueError, match=r"answers of \{4\} tokens, not 5"):
        measure(Repeating(short=True), WORK, lambda _: None)


def test_agreement_counts_equal_answers() -> None:
    assert agreement(Repeating(), Repeating(), WORK) == Agreement(equal=4, compared=4)
    assert agreement(Repeating(), Repeating(shift=1), WORK) == Agreement(equal=0, compared=4)
