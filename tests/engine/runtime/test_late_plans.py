"""When the next plan is made while the device is busy."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from engine.executor.channel import Channel
from engine.executor.gang import Submission
from engine.executor.longest_of_late import LongestOfLate
from engine.runtime.late_plans import LatePlans
from tests.channels import channel_pair


class Machine:
    """Scheduler, executor and clock of a machine on which only waiting takes time."""

    def __init__(self) -> None:
        self.has_prompts = False
        self.busy_s = 100.010
        self.enqueueing = LongestOfLate()
        self.enqueueing.add(0.001, has_prompts=False)
        self.submission = Submission(0.0, has_prompts=False)
        self.now_s = 100.0
        self.waits: list[float] = []
        # of a hold: after how many seconds a command comes, which is a prompt
        self.command_s: float | None = None

    def busy_until_s(self) -> float:
        return self.busy_s

    def wait(self, seconds: float, other: Channel) -> bool:
        has_command = self.command_s is not None and self.command_s < seconds
        if self.command_s is not None and has_command:
            seconds, self.command_s, self.has_prompts = self.command_s, None, True
        self.waits.append(round(seconds, 6))
        self.now_s += seconds
        return has_command

    def clock(self) -> float:
        return self.now_s

    def plan(self, seconds: float, *, has_prompts: bool = False) -> None:
        self.now_s += seconds
        self.submission = Submission(self.now_s, has_prompts)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def late(machine: Machine) -> Iterator[LatePlans]:
    near, far = channel_pair()
    with closing(near), closing(far):
        yield LatePlans(machine, machine, near, machine.clock)


def test_a_plan_is_held_until_the_device_is_about_to_need_it(
    machine: Machine, late: LatePlans
) -> None:
    assert late.hold()
    # all but handing over, and half a millisecond
    assert machine.waits == [0.0085]
    assert late.hold()
    assert machine.waits == [0.0085]


def test_what_planning_takes_is_left_for_it(machine: Machine, late: LatePlans) -> None:
    late.hold()
    machine.plan(0.002)
    machine.busy_s = machine.now_s + 0.010
    late.hold()
    # planned in no time
    machine.plan(1e-9)
    machine.busy_s = machine.now_s + 0.010
    late.hold()
    assert machine.waits == [0.0085, 0.0065, 0.00654]


def test_times_of_plans_with_prompts_leave_the_others_theirs(
    machine: Machine, late: LatePlans
) -> None:
    late.hold()
    machine.enqueueing.add(0.004, has_prompts=True)
    machine.plan(0.002, has_prompts=True)
    machine.busy_s = machine.now_s + 0.010
    late.hold()
    assert machine.waits == [0.0085, 0.0085]
    machine.busy_s = machine.now_s + 0.010
    machine.has_prompts = True
    late.hold()
    assert machine.waits[2:] == [0.0035]


def test_a_prompt_that_comes_is_planned_in_time(machine: Machine, late: LatePlans) -> None:
    machine.enqueueing.add(0.004, has_prompts=True)
    machine.command_s = 0.003
    assert not late.hold()
    assert late.hold()
    assert machine.waits == [0.003, 0.0025]


def test_a_prompt_that_comes_when_others_are_not_due_is_planned_at_once(
    machine: Machine, late: LatePlans
) -> None:
    machine.enqueueing.add(0.004, has_prompts=True)
    machine.command_s = 0.007
    assert not late.hold()
    assert late.hold()
    assert machine.waits == [0.007]


def test_nothing_is_held_without_plans_or_where_a_step_is_handed_over_while_it_lasts(
    machine: Machine, late: LatePlans
) -> None:
    machine.busy_s = 0.0
    assert late.hold()
    machine.busy_s = 100.010
    machine.enqueueing.add(0.010, has_prompts=False)
    assert late.hold()
    assert machine.waits == []
