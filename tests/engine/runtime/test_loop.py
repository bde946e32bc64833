import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.core.engine import Engine
from engine.errors import WorkerDied
from engine.executor.channel import Channel, ChannelClosed
from engine.runtime.client.deltas import deltas
from engine.runtime.loop import run_engine
from engine.runtime.messages import (
    COMMANDS,
    OUTPUTS,
    SNAPSHOTS,
    EngineCommand,
    EngineQuestion,
    Withdrawal,
)
from engine.types import (
    ALL_CHOICES,
    Capacity,
    FinishReason,
    Pin,
    Progress,
    Request,
    SamplingParams,
    StepOutput,
    StepResult,
    int32,
    int64,
)
from tests.fakes import scripted_worker as scripted
from tests.fakes.symbolic_executor import SymbolicExecutor

CAPACITY = Capacity(num_blocks=64, block_size=4, num_rows=16)
LENGTH, ABORT, ERROR = FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR
CRASHED = FinishReason.CRASHED
START_S = 100


class ScriptedChannel(Channel):
    """Hands out the commands of one turn of the loop after the other, and keeps the outputs."""

    def __init__(self, turns: list[list[bytes]]) -> None:
        self._arriving = deque(message for turn in turns for message in (*turn, None))
        self.outputs: list[StepOutput] = []

    def recv(self) -> bytes:
        while self._arriving:
            message = self._arriving.popleft()
            if message is not None:
                return message
        raise ChannelClosed("the script is over")

    def try_recv(self) -> bytes | None:
        return self._arriving.popleft() if self._arriving else None

    def send(self, message: bytes) -> None:
        self.outputs.append(OUTPUTS.decode(message))

    def arrive(self, command: EngineCommand) -> None:
        """A command comes before all that the script still has."""
        self._arriving.appendleft(COMMANDS.encode(command))


class DyingExecutor(SymbolicExecutor):
    """Its workers die in the first step."""

    def collect(self) -> StepResult:
        raise WorkerDied("rank 1 died")


@pytest.fixture(params=[1, 2])
def executor(request: pytest.FixtureRequest) -> SymbolicExecutor:
    return SymbolicExecutor(CAPACITY, scripted.ScriptedModel(), run_ahead=request.param)


def run(
    executor: SymbolicExecutor,
    *turns: list[EngineCommand],
    outputs: list[StepOutput] | None = None,
    hold: Callable[[ScriptedChannel], bool] = lambda channel: True,
) -> list[StepOutput]:
    """Outputs until the work is done; commands of one turn arrive together.

    Args:
        outputs: where they go, for a loop that fails.
        hold: called with the channel before each turn; whether a step may follow.
    """
    channel = ScriptedChannel([[COMMANDS.encode(command) for command in turn] for turn in turns])
    channel.outputs = channel.outputs if outputs is None else outputs
    engine = Engine(scripted.engine_config(pinned_prefix_share=0.2).scheduler, executor)
    seconds = itertools.count(START_S)
    with pytest.raises(ChannelClosed, match="over"):
        run_engine(
            engine,
            channel,
            executor.capacity,
            lambda: float(next(seconds)),
            hold=lambda: hold(channel),
        )
    return channel.outputs


def submit(request_id: int, prompt: list[int], max_tokens: int, n: int = 1) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, n=n)
    return Request(request_id=request_id, prompt=int32(prompt), sampling=sampling)


def pin(request_id: int, prompt: list[int], name: str) -> Request:
    return Request(
        request_id=request_id,
        prompt=int32(prompt),
        sampling=SamplingParams(max_tokens=1),
        pin=Pin(name=name),
    )


def abort(request_ids: list[int], choice: int = ALL_CHOICES) -> Withdrawal:
    choices = int32([choice] * len(request_ids))
    return Withdrawal(int64(request_ids), choices)


def ends(outputs: list[StepOutput]) -> list[tuple[int, int, FinishReason]]:
    """(request id, choice, reason) in order."""
    return [
        (request_id, choice, FinishReason(reason))
        for output in outputs
        for request_id, choice, reason in zip(
            output.request_ids, output.choices, output.finish_reasons, strict=True
        )
        if reason
    ]


def test_tokens_of_a_request_come_back_in_order(executor: SymbolicExecutor) -> None:
    outputs = run(executor, [submit(7, [1, 2, 3], 5)])
    assert dict(deltas(outputs))[7].tokens.tolist() == scripted.continuation([1, 2, 3], 5)


def test_commands_that_arrive_together_are_carry_outed_before_the_next_step(
    executor: SymbolicExecutor,
) -> None:
    outputs = run(executor, [submit(7, [1], 5), submit(8, [2], 5)])
    assert set(outputs[0].request_ids) == {7, 8}


def test_commands_are_taken_while_there_is_work(executor: SymbolicExecutor) -> None:
    outputs = run(executor, [submit(7, [1], 20)], [submit(8, [2], 2)])
    assert ends(outputs) == [(8, 0, LENGTH), (7, 0, LENGTH)]


def test_a_question_is_answered_between_steps(executor: SymbolicExecutor) -> None:
    outputs = run(
        executor, [EngineQuestion.SNAPSHOT], [submit(7, [1, 2, 3], 5)], [EngineQuestion.SNAPSHOT]
    )
    answers = [each for each in outputs if each.snapshot is not None]
    idle, busy = (SNAPSHOTS.decode(answer.snapshot or b"") for answer in answers)
    assert idle.requests.tolist() == []
    assert busy.requests.tolist() == [7]
    assert busy.usage.filled
    assert all(answer.step == -1 and not answer.request_ids for answer in answers)
    assert dict(deltas(outputs))[7].tokens.tolist() == scripted.continuation([1, 2, 3], 5)


def test_an_abort_ends_a_request_and_frees_its_blocks(executor: SymbolicExecutor) -> None:
    outputs = run(executor, [submit(7, [1, 2, 3], 190)], [abort([7, 99])], [submit(8, [1], 1)])
    assert ends(outputs) == [(7, 0, ABORT), (8, 0, LENGTH)]
    usage = outputs[-1].stats.usage
    assert usage.free + usage.cached == CAPACITY.num_slots


def test_one_choice_is_aborted_and_the_others_go_on(executor: SymbolicExecutor) -> None:
    outputs = run(executor, [submit(7, [1], 5, n=3)], [abort([7], choice=1)])
    assert sorted(ends(outputs)) == [(7, 0, LENGTH), (7, 1, ABORT), (7, 2, LENGTH)]


def test_a_request_that_the_core_refuses_fails_and_no_other(
    executor: SymbolicExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    outputs = run(executor, [submit(7, [], 5, n=3)], [submit(8, [1], 1)])
    assert ends(outputs) == [(7, 0, ERROR), (7, 1, ERROR), (7, 2, ERROR), (8, 0, LENGTH)]
    assert [request_id for request_id, _ in outputs[0].refusals] == [7] * 3
    assert dict(deltas(outputs))[8].tokens.tolist() == scripted.continuation([1], 1)
    assert caplog.text.count("request_refused request_id=7") == 1


def test_a_refusal_carries_the_counts_of_the_latest_step(executor: SymbolicExecutor) -> None:
    first, *_ = run(executor, [submit(7, [], 5)])
    assert first.stats.usage.free == CAPACITY.num_slots
    outputs = run(executor, [submit(8, [1], 20)], [], [submit(7, [], 5)])
    refused = next(place for place, output in enumerate(outputs) if output.refusals)
    assert refused > 0
    assert outputs[refused].stats == outputs[refused - 1].stats


def test_a_request_has_the_time_of_its_arrival() -> None:
    capacity = Capacity(num_blocks=64, block_size=4, num_rows=1)
    executor = SymbolicExecutor(capacity, scripted.ScriptedModel())
    outputs = run(executor, [submit(7, [1], 4), submit(8, [2], 1)])
    waited_s = [output.stats.oldest_waiting_s for output in outputs]
    assert 0 < max(waited_s) < START_S


def test_the_death_of_a_worker_ends_the_loop_and_what_ran() -> None:
    capacity = Capacity(num_blocks=64, block_size=4, num_rows=2)
    executor = DyingExecutor(capacity, scripted.ScriptedModel())
    outputs: list[StepOutput] = []
    with pytest.raises(WorkerDied, match="rank 1"):
        run(executor, [submit(7, [1], 5, n=2), submit(8, [1], 5)], outputs=outputs)
    [last] = outputs
    assert last.failure == "rank 1 died"
    # the batch has no row for the other one: it waits
    assert ends(outputs) == [(7, 0, CRASHED), (7, 1, CRASHED)]
    assert (last.stats.num_running, last.stats.num_waiting) == (0, 1)


def test_a_prefix_is_pinned_found_and_released(executor: SymbolicExecutor) -> None:
    outputs = run(
        executor,
        [pin(7, [1] * 9, "a")],
        *[[]] * 4,
        [submit(8, [1] * 12, 3)],
        *[[]] * 8,
        # nothing else is to do: the prefixes that are left are reported all the same
        [Withdrawal(int64(), int32(), ((b"", "a"), (b"", "b")))],
    )
    lists = [output.pinned for output in outputs if output.pinned is not None]
    [prefix] = lists[-2]
    assert (prefix.name, prefix.num_blocks, prefix.is_warm) == ("a", 2, True)
    assert lists[-1] == ()
    assert dict(deltas(outputs))[8].num_cached == 8
    assert dict(deltas(outputs))[8].tokens.tolist() == scripted.continuation([1] * 12, 3)


def test_a_prefix_beyond_the_budget_is_refused_with_the_reason(executor: SymbolicExecutor) -> None:
    [output] = run(executor, [pin(7, [1] * 60, "a")])
    [(request_id, refusal)] = output.refusals
    assert request_id == 7
    assert "needs 15 more blocks" in refusal.message


def test_a_request_that_goes_on_keeps_its_age() -> None:
    capacity = Capacity(num_blocks=64, block_size=4, num_rows=1)
    executor = SymbolicExecutor(capacity, scripted.ScriptedModel())
    begun = replace(submit(8, [2], 1), progress=Progress(age_s=START_S))
    outputs = run(executor, [submit(7, [1], 4)], [begun])
    assert max(output.stats.oldest_waiting_s for output in outputs) > START_S


def test_who_comes_while_the_loop_is_held_is_in_the_next_step(executor: SymbolicExecutor) -> None:
    holds: list[int] = []

    def hold(channel: ScriptedChannel) -> bool:
        holds.append(len(channel.outputs))
        if len(holds) == 2:
            channel.arrive(submit(2, [4, 5], max_tokens=1))
        return True

    outputs = run(executor, [submit(1, [1, 2, 3], max_tokens=4)], hold=hold)
    steps = [list(output.request_ids) for output in outputs]
    # the plans of the steps before that were there already
    assert steps[executor.run_ahead] == [1, 2]
    assert holds[:3] == [0, 1, 2]


def test_a_command_that_ends_a_hold_is_taken_before_the_next_one(
    executor: SymbolicExecutor,
) -> None:
    holds: list[int] = []

    def hold(channel: ScriptedChannel) -> bool:
        holds.append(len(channel.outputs))
        if len(holds) == 2:
            channel.arrive(submit(2, [4, 5], max_tokens=1))
        return len(holds) != 2

    outputs = run(executor, [submit(1, [1, 2, 3], max_tokens=4)], hold=hold)
    steps = [list(output.request_ids) for output in outputs]
    assert steps[executor.run_ahead] == [1, 2]
    # no step between the two
    assert holds[:4] == [0, 1, 1, 2]
