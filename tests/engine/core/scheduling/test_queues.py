"""Queues: first come, first served."""

from engine.core.scheduling.queues import Queues
from engine.core.sequence_group import Status
from engine.types import Progress
from tests.engine.core.harness.groups import group_of


def test_the_earliest_comes_back_first_whichever_way_it_was_preempted() -> None:
    queues = Queues()
    groups = [group_of([1], first_id=index) for index in range(4)]
    for group in groups:
        queues.add(group)
    for group in groups[:3]:
        assert queues.next_in_line is group
        queues.enter(group)
    queues.preempt(groups[2], swap=True, step=0)
    queues.preempt(groups[1], swap=False, step=0)
    assert [group.status for group in groups] == [
        Status.RUNNING,
        Status.WAITING,
        Status.SWAPPED,
        Status.WAITING,
    ]
    for group in groups[1:]:
        assert queues.next_in_line is group
        queues.enter(group)
    assert queues.running == groups
    assert queues.next_in_line is None


def test_a_group_is_removed_from_wherever_it_is() -> None:
    queues = Queues()
    waiting, swapped, running = (group_of([1], first_id=index) for index in range(3))
    for group in (running, swapped, waiting):
        queues.add(group)
    queues.enter(running)
    queues.enter(swapped)
    queues.preempt(swapped, swap=True, step=0)
    for group in (waiting, swapped, running):
        queues.remove(group)
    assert [len(queue) for queue in (queues.waiting, queues.swapped, queues.running)] == [0] * 3


def test_an_overtaken_group_is_preempted_after_those_that_overtook_it() -> None:
    queues = Queues()
    first, overtaken, later = (group_of([1], first_id=index) for index in range(3))
    for group in (first, overtaken, later):
        queues.add(group)
    queues.enter(first)
    queues.enter(overtaken)
    queues.preempt(overtaken, swap=True, step=0)
    queues.enter(later)
    queues.enter(overtaken)
    assert queues.running == [first, overtaken, later]
    for group in (later, overtaken):
        queues.preempt(group, swap=True, step=0)
    assert list(queues.swapped) == [overtaken, later]


def test_what_another_engine_has_begun_goes_ahead_of_new_groups_the_oldest_first() -> None:
    queues = Queues()
    new = [group_of([1], first_id=index) for index in range(2)]
    begun = [
        group_of([1], first_id=index, progress=Progress(age_s=9.0 - index), arrival_s=index - 9.0)
        for index in (3, 2)
    ]
    for group in (new[0], begun[0], new[1], begun[1]):
        queues.add(group)
    assert list(queues.waiting) == [begun[1], begun[0], *new]
    # also against what runs already and is preempted
    queues.enter(new[0])
    queues.enter(begun[1])
    assert queues.running == [begun[1], new[0]]
    queues.preempt(new[0], swap=True, step=0)
    assert queues.next_in_line is begun[0]


def test_nobody_may_join_a_group_on_probation() -> None:
    queues = Queues()
    suspect = group_of([1], first_id=1, progress=Progress(solo_tokens=2))
    queues.add(suspect)
    queues.add(group_of([1], first_id=2))
    assert not queues.are_closed
    queues.enter(suspect)
    assert queues.are_closed
    assert not queues.is_probation_over
    suspect.sequences[0].output.extend([7, 8])
    assert not queues.are_closed
    queues.remove(suspect)
    assert not queues.are_closed


def test_who_is_on_probation_goes_ahead_of_who_is_not_and_makes_way_when_it_is_over() -> None:
    queues = Queues()
    first, second = (
        group_of([1], first_id=index, progress=Progress(solo_tokens=1), arrival_s=index)
        for index in (1, 2)
    )
    older = group_of([1], first_id=3, progress=Progress(), arrival_s=0.0)
    for group in (second, older, first):
        queues.add(group)
    assert list(queues.waiting) == [first, second, older]
    queues.enter(first)
    assert not queues.is_probation_over
    first.sequences[0].output.append(7)
    assert queues.is_probation_over
    queues.preempt(first, swap=False, step=-1)
    assert list(queues.waiting) == [second, older, first]
    queues.enter(second)
    second.sequences[0].output.append(7)
    # nobody is left who needs the batch for itself
    assert not queues.is_probation_over
