import pytest

from engine.config import SchedulerConfig
from engine.core.engine import Engine
from engine.core.scheduling.admission_gate import BatchGate, IterationGate
from engine.core.scheduling.grouping import make_group
from engine.core.sequence_group import SequenceGroup
from engine.types import Capacity, Request, SamplingParams, int32
from tests.fakes.symbolic_executor import SymbolicExecutor

CAPACITY = Capacity(num_blocks=100, block_size=4, num_rows=8)
CONFIG = SchedulerConfig(max_num_batched_tokens=64, max_model_len=40, prompt_share=1.0)


def _request(request_id: int, prompt_len: int, max_tokens: int, n: int = 1) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, n=n, ignore_eos=True)
    return Request(request_id=request_id, prompt=int32([1] * prompt_len), sampling=sampling)


def _groups(*sizes: tuple[int, ...]) -> list[SequenceGroup]:
    return [make_group(_request(i, *size), i, CONFIG, CAPACITY) for i, size in enumerate(sizes)]


def test_the_iteration_gate_is_always_open() -> None:
    assert IterationGate().num_open(_groups((4, 4), (4, 4)), num_running=3) == 2


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ([(10, 10), (20, 5), (5, 20)], 3),
        # 20 of the first and 21 of the last make a rectangle that is too wide
        ([(20, 5), (10, 10), (5, 21)], 2),
        ([(5, 5), (5, 5, 2), (5, 5)], 1),
        ([(5, 5, 2), (5, 5, 2), (5, 5)], 2),
        # the first is let in by itself, or it would block the queue for ever
        ([(35, 5), (20, 10)], 1),
    ],
)
def test_a_batch_is_a_rectangle_of_the_earliest_alike(
    sizes: list[tuple[int, ...]], count: int
) -> None:
    gate = BatchGate(max_total_len=40)
    assert gate.num_open(_groups(*sizes), num_running=0) == count


def test_the_batch_gate_is_shut_while_the_last_batch_runs() -> None:
    gate = BatchGate(max_total_len=40)
    assert gate.num_open(_groups((5, 5)), num_running=1) == 0
    assert gate.num_open([], num_running=0) == 0


def test_under_faster_transformer_batches_follow_each_other_whole() -> None:
    config = SchedulerConfig(
        max_num_batched_tokens=64,
        max_model_len=32,
        memory_policy="faster_transformer",
        prompt_share=1.0,
    )
    capacity = Capacity(num_blocks=32, block_size=4, num_rows=3)
    engine = Engine(config, SymbolicExecutor(capacity))
    for request_id in range(5):
        engine.scheduler.add(_request(request_id, prompt_len=4, max_tokens=2 + request_id))
    batches = []
    while (output := engine.step(0.0)) is not None:
        batches.append(sorted(set(output.request_ids)))
    # rows bound the first batch; the places of 0 and 1 stay free until 2 has ended
    assert batches == [[0, 1, 2], [0, 1, 2], [1, 2], [2], *[[3, 4]] * 5, [4]]
