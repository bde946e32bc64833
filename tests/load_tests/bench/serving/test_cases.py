import argparse

import pytest

from load_tests.bench.serving.cases import add_load, cases_of, order_of, warm_up


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_load(parser.add_argument_group("load"))
    return parser.parse_args(words)


def test_each_rate_and_each_number_in_flight_is_a_case() -> None:
    cases = cases_of(parsed("--rate", "5,10", "--concurrency", "8,16", "--turnover", "4"))
    assert [case.label for case in cases] == [
        "5 req/s",
        "10 req/s",
        "closed loop, 8 in flight",
        "closed loop, 16 in flight",
    ]
    assert [case.concurrency for case in cases] == [None, None, 8, 16]
    assert [len(case.schedule) for case in cases[2:]] == [32, 64]


def test_there_may_be_no_rate_and_a_turnover_for_each_number_in_flight() -> None:
    cases = cases_of(parsed("--rate", "none", "--concurrency", "1,8", "--turnover", "6,2"))
    assert [(case.concurrency, len(case.schedule)) for case in cases] == [(1, 6), (8, 16)]


def test_turnovers_of_another_number_are_refused() -> None:
    with pytest.raises(ValueError, match="--turnover has 2 numbers for the 3 of --concurrency"):
        cases_of(parsed("--rate", "none", "--concurrency", "1,8,32", "--turnover", "6,2"))


def test_the_warm_up_has_lengths_of_the_cases_and_other_prompts() -> None:
    case = warm_up(parsed("--lengths", "fixed:9:5", "--warm-up", "3"))
    assert [(one.input_len, one.output_len) for one in case.schedule] == [(9, 5)] * 3
    assert case.concurrency == 3


def test_servers_take_turns_and_the_peer_may_have_fewer() -> None:
    assert [order_of(2, number, None) for number in range(3)] == [[0, 1], [1, 0], [0, 1]]
    assert [order_of(2, number, 1) for number in range(3)] == [[0, 1], [0], [0]]
    assert order_of(1, 1, None) == [0]
