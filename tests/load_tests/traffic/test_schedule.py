from collections import Counter
from itertools import pairwise
from statistics import mean, pstdev, pvariance

import pytest

from load_tests.traffic.lengths import FixedLengths, parse_lengths
from load_tests.traffic.schedule import Extent, at_once, digest, poisson, prompt

ONE = FixedLengths(3, 5)


def test_poisson_arrivals_have_exponential_gaps_and_poisson_counts() -> None:
    schedule = poisson(5.0, ONE, Extent(num_requests=20_000), seed=0)
    times = [request.due_s for request in schedule]
    gaps = [b - a for a, b in pairwise(times)]
    windows = Counter(int(time) for time in times)
    counts = [windows[second] for second in range(int(times[-1]))]
    assert mean(gaps) == pytest.approx(1 / 5, rel=0.03)
    assert pstdev(gaps) / mean(gaps) == pytest.approx(1.0, abs=0.03)
    assert pvariance(counts) / mean(counts) == pytest.approx(1.0, abs=0.08)
    assert len(set(gaps)) == len(gaps)


def test_arrivals_are_not_stretched_to_fill_the_duration() -> None:
    numbers = {len(poisson(2.0, ONE, Extent(duration_s=100), seed)) for seed in range(20)}
    assert len(numbers) > 5
    assert poisson(2.0, ONE, Extent(duration_s=100), seed=1)[-1].due_s < 100


def test_one_seed_gives_one_schedule_and_the_same_lengths_at_every_rate() -> None:
    lengths, extent = parse_lengths("sharegpt"), Extent(num_requests=50)
    slow, fast = (poisson(rate, lengths, extent, seed=3) for rate in (1.0, 8.0))
    assert digest(slow) == digest(poisson(1.0, lengths, extent, seed=3))
    assert digest(slow) != digest(fast)
    assert digest(slow) != digest(poisson(1.0, lengths, extent, seed=4))
    assert [r.output_len for r in slow] == [r.output_len for r in fast]
    assert [r.output_len for r in slow] == [r.output_len for r in at_once(lengths, 50, seed=3)]


@pytest.mark.parametrize(("rate", "extent"), [(0.0, Extent(num_requests=1)), (1.0, Extent())])
def test_a_schedule_without_rate_or_end_is_refused(rate: float, extent: Extent) -> None:
    with pytest.raises(ValueError, match=r"rate|duration"):
        poisson(rate, ONE, extent, seed=0)


def test_prompts_have_exact_length_and_share_nothing() -> None:
    first, second = prompt(0, 0, 100, 50), prompt(0, 1, 100, 50)
    assert len(first) == 100
    assert all(0 <= token < 50 for token in first)
    assert first[:20] != second[:20]
    assert first == prompt(0, 0, 100, 50)
