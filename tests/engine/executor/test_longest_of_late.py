"""The longest of recent times."""

import pytest

from engine.executor.longest_of_late import LongestOfLate


def test_the_longest_counts_and_is_forgotten_slowly() -> None:
    longest = LongestOfLate()
    seen = []
    for seconds in (0.5, 0.0, 0.25, 0.75):
        longest.add(seconds, has_prompts=False)
        seen.append(longest.seconds(has_prompts=False))
    assert seen == [0.5, pytest.approx(0.49), pytest.approx(0.4802), 0.75]


def test_steps_with_prompts_count_apart() -> None:
    longest = LongestOfLate()
    longest.add(0.5, has_prompts=True)
    assert longest.seconds(has_prompts=False) == 0.0
    longest.add(0.25, has_prompts=False)
    # and lose nothing while others are added
    assert longest.seconds(has_prompts=True) == 0.5
