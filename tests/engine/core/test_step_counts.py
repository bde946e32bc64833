from engine.config import SchedulerConfig
from engine.core.engine import Engine
from engine.core.scheduling.preemption import FixedPreemption, Preemption
from engine.types import Capacity, EventKind, Request, SamplingParams, StepOutput, int32
from tests.fakes.symbolic_executor import SymbolicExecutor, SymbolicModel


def run(
    requests: list[Request], preemption: Preemption, *, num_blocks: int, num_swap_blocks: int = 0
) -> list[StepOutput]:
    config = SchedulerConfig(max_num_batched_tokens=64, max_model_len=64, prompt_share=1.0)
    capacity = Capacity(
        num_blocks=num_blocks, block_size=4, num_rows=8, num_swap_blocks=num_swap_blocks
    )
    executor = SymbolicExecutor(capacity, SymbolicModel(), run_ahead=2)
    engine = Engine(config, executor, preemption=preemption)
    for request in requests:
        engine.scheduler.add(request)
    outputs = []
    now_s = 0.0
    while (output := engine.step(now_s)) is not None:
        outputs.append(output)
        now_s += 1.0
    return outputs


def request(number: int, length: int, max_tokens: int, n: int = 1) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, seed=number, n=n, ignore_eos=True)
    prompt = int32([number * 100 + index for index in range(length)])
    return Request(request_id=number, prompt=prompt, sampling=sampling)


def kinds(outputs: list[StepOutput], request_id: int) -> list[EventKind]:
    return [
        EventKind(kind)
        for output in outputs
        if output.events is not None
        for of, kind in zip(output.events.requests, output.events.kinds, strict=True)
        if of == request_id
    ]


def test_prompts_forks_and_copies_are_counted() -> None:
    outputs = run([request(1, 6, 5, n=3)], FixedPreemption(swap=False), num_blocks=32)
    work = outputs[-1].stats.work
    assert (work.num_prompt_tokens, work.num_prompt_cached) == (6, 0)
    # two siblings, and all but the last to write copy the half full block
    assert (work.num_forks, work.num_copied_blocks) == (2, 2)
    first = outputs[0].stats
    assert (first.num_tokens, first.num_decode_rows) == (6, 0)
    assert outputs[1].stats.num_decode_rows == 3
    assert all(output.stats.schedule_s + output.stats.update_s > 0 for output in outputs)


def test_a_prompt_that_is_cached_counts_as_such() -> None:
    same = request(1, 9, 2)
    config = SchedulerConfig(max_num_batched_tokens=64, max_model_len=64, prompt_share=1.0)
    capacity = Capacity(num_blocks=32, block_size=4, num_rows=8)
    engine = Engine(config, SymbolicExecutor(capacity, SymbolicModel()))
    for number in (1, 2):
        sampling = SamplingParams(max_tokens=2, ignore_eos=True)
        engine.scheduler.add(Request(request_id=number, prompt=same.prompt, sampling=sampling))
        while (output := engine.step(0.0)) is not None:
            work = output.stats.work
    assert (work.num_prompt_tokens, work.num_prompt_cached) == (18, 8)


def test_a_recomputed_group_counts_its_tokens_again() -> None:
    outputs = run([request(1, 8, 16), request(2, 8, 16)], FixedPreemption(swap=False), num_blocks=8)
    work = outputs[-1].stats.work
    assert work.num_prompt_tokens == 16
    assert work.num_recomputed_tokens > 0
    assert (work.num_blocks_swapped_out, work.num_blocks_swapped_in) == (0, 0)
    assert kinds(outputs, 2) == [
        EventKind.QUEUED,
        EventKind.ADMITTED,
        EventKind.PREFILLED,
        EventKind.PREEMPTED_RECOMPUTE,
        EventKind.RESUMED,
        EventKind.PREFILLED,
        EventKind.ENDED,
    ]


def test_a_swapped_group_counts_its_blocks() -> None:
    outputs = run(
        [request(1, 8, 16), request(2, 8, 16)],
        FixedPreemption(swap=True),
        num_blocks=8,
        num_swap_blocks=32,
    )
    work = outputs[-1].stats.work
    assert work.num_recomputed_tokens == 0
    assert work.num_blocks_swapped_in > 0
    assert work.num_blocks_swapped_out >= work.num_blocks_swapped_in
    assert kinds(outputs, 2) == [
        EventKind.QUEUED,
        EventKind.ADMITTED,
        EventKind.PREFILLED,
        EventKind.PREEMPTED_SWAP,
        EventKind.RESUMED,
        EventKind.ENDED,
    ]
