from array import array

import pytest

from load_tests.http.client import Record
from load_tests.monitoring.comparison import Means, compare, compare_means
from load_tests.traffic.schedule import TimedRequest

START_S = 1000.0


def record(sent_s: float, first_s: float, num_gaps: int) -> Record:
    """Two tokens at once, then one each 0.1 s."""
    request = TimedRequest(due_s=sent_s, input_len=4, output_len=num_gaps + 2)
    chunk_s = [first_s, *(first_s + 0.1 * (number + 1) for number in range(num_gaps))]
    return Record(
        request=request,
        sent_s=sent_s,
        chunk_s=array("d", chunk_s),
        chunk_tokens=array("i", [2] + [1] * num_gaps),
    )


def test_figures_of_clients_stand_beside_what_prometheus_says() -> None:
    asked = []

    def ask(expression: str, at_s: float) -> float:
        asked.append((expression, at_s))
        return 1.0

    found = compare(ask, [record(0, 1, 90), record(0.5, 1, 90)], START_S, START_S + 12)
    first, between, whole, rate = found
    assert first.client == 0.75
    assert round(between.client, 9) == 0.1
    assert round(whole.client, 9) == 9.75
    # each 0.1 s a token of either, from 1.5 s to 8.5 s
    assert rate.client == pytest.approx(20, rel=0.02)
    assert asked[0][0] == (
        "sum(increase(pagoda_time_to_first_token_seconds_sum[12000ms])) / "
        "sum(increase(pagoda_time_to_first_token_seconds_count[12000ms]))"
    )
    assert asked[0][1] == START_S + 12
    assert asked[3] == ("sum(rate(pagoda_generated_tokens_total[7000ms]))", START_S + 8.5)
    assert first.difference == pytest.approx(1 / 3)
    assert not first.is_close


def test_three_percent_is_close() -> None:
    [first, *_] = compare(lambda *_: 1.02, [record(0, 1, 9)], START_S, START_S + 12)
    assert first.is_close
    [first, *_] = compare(lambda *_: 0.96, [record(0, 1, 9)], START_S, START_S + 12)
    assert not first.is_close


def test_means_of_a_foreign_generator_stand_there_as_well() -> None:
    asked = []

    def ask(expression: str, at_s: float) -> float:
        asked.append(expression)
        return 64.0

    means = Means(first_s=0.5, gap_s=0.1, whole_s=2.0, num_tokens=640, load_s=10.0)
    *_, rate = found = compare_means(ask, means, START_S, START_S + 12)
    assert [each.client for each in found] == [0.5, 0.1, 2.0, 64.0]
    assert rate.is_close
    [expression] = {each for each in asked if "generated" in each}
    assert expression == (
        "(sum(pagoda_generated_tokens_total) - "
        "sum(pagoda_generated_tokens_total offset 12000ms)) / 10.000"
    )
