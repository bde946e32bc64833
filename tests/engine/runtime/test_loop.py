import threading
from collections.abc import Callable, Iterator

import pytest

from engine.core.engine import Engine
from engine.executor.channel import Channel, ChannelClosed
from engine.runtime.loop import EngineLoop
from engine.runtime.messages import COMMANDS, OUTPUTS, Command
from engine.runtime.outputs import deltas
from engine.types import (
    ALL_CHOICES,
    Capacity,
    FinishReason,
    Pin,
    Request,
    SamplingParams,
    StepOutput,
    int32,
    int64,
)
from tests.channels import channel_pair
from tests.fakes import scripted_worker as scripted
from tests.fakes.symbolic_executor import SymbolicExecutor

CAPACITY = Capacity(num_blocks=64, block_size=4, num_rows=16)


class Replica:
    """The replica's end of the channel to a loop on a thread."""

    def __init__(self, run_ahead: int) -> None:
        executor = SymbolicExecutor(CAPACITY, scripted.ScriptedModel(), run_ahead=run_ahead)
        engine = Engine(scripted.engine_config(pinned_prefix_share=0.2).scheduler, executor)
        self.channel, far = channel_pair()
        loop = EngineLoop(engine, far, CAPACITY, lambda: 1.0)
        self.thread = threading.Thread(target=self._run, args=(loop, far))
        self.thread.start()

    def submit(self, request_id: int, prompt: list[int], max_tokens: int, n: int = 1) -> None:
        request = Request(
            request_id=request_id,
            prompt=int32(prompt),
            sampling=SamplingParams(max_tokens=max_tokens, n=n),
        )
        self.channel.send(COMMANDS.encode(Command(request=request)))

    def pin(self, request_id: int, prompt: list[int], name: str) -> None:
        request = Request(
            request_id=request_id,
            prompt=int32(prompt),
            sampling=SamplingParams(max_tokens=1),
            pin=Pin(name=name),
        )
        self.channel.send(COMMANDS.encode(Command(request=request)))

    def read_until(self, is_last: Callable[[StepOutput], bool]) -> list[StepOutput]:
        outputs = [OUTPUTS.decode(self.channel.recv())]
        while not is_last(outputs[-1]):
            outputs.append(OUTPUTS.decode(self.channel.recv()))
        return outputs

    def _run(self, loop: EngineLoop, far: Channel) -> None:
        with pytest.raises(ChannelClosed):
            loop.run()
        far.close()


def has_reason(reason: FinishReason) -> Callable[[StepOutput], bool]:
    return lambda output: reason in output.finish_reasons


@pytest.fixture(params=[1, 2])
def replica(request: pytest.FixtureRequest) -> Iterator[Replica]:
    replica = Replica(request.param)
    yield replica
    replica.channel.close()
    replica.thread.join(10)
    assert not replica.thread.is_alive()


def test_tokens_of_a_request_come_back_in_order(replica: Replica) -> None:
    replica.submit(7, [1, 2, 3], 5)
    outputs = replica.read_until(has_reason(FinishReason.LENGTH))
    assert dict(deltas(outputs))[7].tokens.tolist() == scripted.continuation([1, 2, 3], 5)


def test_an_abort_ends_a_request_and_frees_its_blocks(replica: Replica) -> None:
    replica.submit(7, [1, 2, 3], 190)
    replica.channel.send(
        COMMANDS.encode(Command(aborts=int64([7, 99]), abort_choices=int32([ALL_CHOICES] * 2)))
    )
    replica.read_until(has_reason(FinishReason.ABORT))
    replica.submit(8, [1], 1)
    last = replica.read_until(has_reason(FinishReason.LENGTH))[-1]
    assert last.stats.usage.free + last.stats.usage.cached == CAPACITY.num_slots


def test_a_request_that_the_core_refuses_fails_alone(replica: Replica) -> None:
    replica.submit(7, [], 5, n=3)
    refused = replica.read_until(has_reason(FinishReason.ERROR))[-1]
    assert list(zip(refused.request_ids, refused.choices, strict=True)) == [(7, 0), (7, 1), (7, 2)]
    replica.submit(8, [1], 1)
    outputs = replica.read_until(has_reason(FinishReason.LENGTH))
    assert dict(deltas(outputs))[8].tokens.tolist() == scripted.continuation([1], 1)


def test_a_prefix_is_pinned_found_and_released(replica: Replica) -> None:
    replica.pin(7, [1] * 9, "a")
    last = replica.read_until(has_reason(FinishReason.LENGTH))[-1]
    assert last.pinned is not None
    [prefix] = last.pinned
    assert (prefix.name, prefix.num_blocks, prefix.is_warm) == ("a", 2, True)
    replica.submit(8, [1] * 12, 3)
    outputs = replica.read_until(has_reason(FinishReason.LENGTH))
    assert dict(deltas(outputs))[8].num_cached == 8
    assert dict(deltas(outputs))[8].tokens.tolist() == scripted.continuation([1] * 12, 3)
    # nothing else is to do: the release is told all the same
    replica.channel.send(COMMANDS.encode(Command(releases=((b"", "a"), (b"", "b")))))
    assert replica.read_until(lambda output: output.pinned is not None)[-1].pinned == ()


def test_a_prefix_beyond_the_budget_is_refused_with_the_reason(replica: Replica) -> None:
    replica.pin(7, [1] * 60, "a")
    refused = replica.read_until(has_reason(FinishReason.ERROR))[-1]
    [(request_id, refusal)] = refused.refusals
    assert request_id == 7
    assert "needs 15 more blocks" in refusal.message
