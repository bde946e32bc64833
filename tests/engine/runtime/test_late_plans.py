"""When the next plan is made while the device is busy."""

from engine.runtime.late_plans import LatePlans


class WaitingExecutor:
    """An executor, and the clock of a machine on which only waiting takes time."""

    def __init__(self) -> None:
        self.enqueue_s = 0.001
        self.submitted_s = 0.0
        self.now_s = 100.0
        self.waits: list[float] = []

    def wait(self, seconds: float) -> None:
        self.waits.append(round(seconds, 6))
        self.now_s += seconds

    def clock(self) -> float:
        return self.now_s


def test_a_plan_is_held_until_the_device_is_about_to_need_it() -> None:
    executor = WaitingExecutor()
    late = LatePlans(lambda: 100.010, executor, executor.clock)
    late.hold()
    # all but handing over, and half a millisecond
    assert executor.waits == [0.0085]
    late.hold()
    assert executor.waits == [0.0085]


def test_what_planning_takes_is_left_for_it() -> None:
    executor = WaitingExecutor()
    late = LatePlans(lambda: executor.now_s + 0.010, executor, executor.clock)
    late.hold()
    executor.now_s += 0.002
    executor.submitted_s = executor.now_s
    late.hold()
    # planned in no time
    executor.submitted_s = executor.now_s
    late.hold()
    assert executor.waits == [0.0085, 0.0065, 0.0065]
    executor.now_s += 1e-9
    executor.submitted_s = executor.now_s
    late.hold()
    assert executor.waits[-1] == 0.00654


def test_nothing_is_held_without_plans_or_where_a_step_is_handed_over_while_it_lasts() -> None:
    executor = WaitingExecutor()
    LatePlans(lambda: 0.0, executor, executor.clock).hold()
    executor.enqueue_s = 0.010
    LatePlans(lambda: 100.010, executor, executor.clock).hold()
    assert executor.waits == []
