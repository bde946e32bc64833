from load_tests.faults.answers import Choice, Received
from load_tests.faults.trial import judge


def answer(sent_s: float, *arrivals_s: float, text: str = "a", error: str = "") -> Received:
    return Received(
        sent_s=sent_s,
        is_complete=not error,
        error=error,
        choices={0: Choice(text=text)},
        arrivals_s=list(arrivals_s),
        closed_s=max((sent_s, *arrivals_s)),
    )


RIGHT = answer(0.0, 1.0)


def test_answers_are_counted_by_what_became_of_them() -> None:
    seen = [
        answer(0.0, 1.0),
        answer(0.0, 1.0, text="b"),
        answer(0.0, 1.0, error="cut_without_done"),
        answer(0.0, 1.0, error="engine_failed"),
        answer(0.0, error="http_503"),
    ]
    trial = judge("worker killed", [("greedy", RIGHT, item) for item in seen], struck_s=5.0)
    assert (trial.num_right, trial.wrong, trial.num_cut) == (1, ("greedy",), 1)
    assert trial.errors == ("engine_failed", "http_503")
    assert trial.num_requests == 5
    assert trial.num_open == 3


def test_the_stall_is_the_wait_over_the_fault() -> None:
    # what was on its way still comes at once
    late = answer(0.0, 1.0, 2.5, 3.1, 10.1)
    seen = [answer(0.0, 1.0, 4.5, 5.0), late, answer(4.0, 4.5)]
    trial = judge("worker killed", [("greedy", RIGHT, item) for item in seen], struck_s=3.0)
    assert trial.num_open == 2
    assert trial.stall_s == 7.0
    assert trial.next_answer_s == 1.5


def test_without_a_fault_nothing_was_open_then() -> None:
    trial = judge("none", [("greedy", RIGHT, answer(0.0, 1.0))], struck_s=float("inf"))
    assert (trial.num_open, trial.stall_s, trial.next_answer_s) == (0, 0.0, None)


def test_a_request_that_came_after_the_fault_may_be_what_waits_longest() -> None:
    seen = [answer(0.0, 1.0, 3.5), answer(4.0, 9.0), answer(0.0, 1.0, 2.9)]
    trial = judge("worker killed", [("greedy", RIGHT, item) for item in seen], struck_s=3.0)
    assert trial.stall_s == 5.0


def test_who_is_cut_off_first_notices() -> None:
    seen = [answer(0.0, 2.0), answer(0.0, 4.5, error="cut"), answer(0.0, 3.5, error="http_500")]
    trial = judge("proxy killed", [("greedy", RIGHT, item) for item in seen], struck_s=3.0)
    assert trial.noticed_s == 0.5
    assert judge("proxy killed", [("greedy", RIGHT, seen[0])], struck_s=3.0).noticed_s is None
