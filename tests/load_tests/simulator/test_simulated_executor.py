from engine.config import SchedulerConfig
from engine.core.engine import Engine
from engine.core.memory.paged_block_manager import PagedBlockManager
from engine.types import Capacity, Request, SamplingParams, StepOutput, int32
from load_tests.simulator.simulated_executor import (
    OUTPUT_TOKEN,
    PROMPT_TOKEN,
    BeamAncestry,
    SimulatedExecutor,
)
from load_tests.simulator.step_time import LinearStepTime, StepWork

CONFIG = SchedulerConfig(
    max_num_batched_tokens=64, max_model_len=200, prefix_cache=False, prompt_share=1.0
)
CAPACITY = Capacity(num_blocks=64, block_size=4, num_rows=8, num_swap_blocks=64)
STEP_TIME = LinearStepTime(
    weights_s=1.0, token_s=0.0, context_token_s=0.001, step_s=0.0, sequence_s=0.0
)


def _request(request_id: int, prompt_len: int, max_tokens: int, beam_width: int = 0) -> Request:
    sampling = SamplingParams(
        max_tokens=max_tokens, seed=request_id, ignore_eos=True, beam_width=beam_width
    )
    prompt = int32([PROMPT_TOKEN]) * prompt_len
    return Request(request_id=request_id, prompt=prompt, sampling=sampling)


def _run(engine: Engine, *requests: Request) -> list[StepOutput]:
    for request in requests:
        engine.scheduler.add(request)
    outputs = []
    while (output := engine.step(0.0)) is not None:
        outputs.append(output)
    return outputs


def _saving(replacement: float, seed: int = 0, capacity: Capacity = CAPACITY) -> list[int]:
    """Slots that four beams share in each step."""
    executor = SimulatedExecutor(
        capacity, STEP_TIME, ancestry=BeamAncestry(replacement=replacement, seed=seed)
    )
    memory = PagedBlockManager(
        capacity.num_blocks, capacity.block_size, prefix_cache=False, num_swap_blocks=64
    )
    outputs = _run(
        Engine(CONFIG, executor, block_manager=memory), _request(1, 10, 40, beam_width=4)
    )
    return [output.stats.usage.shared_saving for output in outputs]


def test_each_step_takes_the_time_of_its_work() -> None:
    engine = Engine(CONFIG, SimulatedExecutor(CAPACITY, STEP_TIME))
    outputs = _run(engine, _request(0, 10, 3), _request(1, 5, 2))
    assert [list(output.tokens) for output in outputs] == [
        [OUTPUT_TOKEN] * 2,
        [OUTPUT_TOKEN] * 2,
        [OUTPUT_TOKEN],
    ]
    times = [round(output.stats.elapsed_s, 6) for output in outputs]
    assert times == [1.015, 1.017, 1.012]


def test_beams_share_all_but_their_own_ends_when_none_is_ever_replaced() -> None:
    saving = _saving(0.0)
    # two full blocks and half of one for three beams; then each has a copy of the half one
    assert saving[0] == 30
    assert saving[10] == 24
    assert saving[-2] == 24


def test_beams_that_replace_each_other_share_more() -> None:
    calm, wild = _saving(0.01), _saving(0.5)
    assert sum(wild) > sum(calm) >= sum(_saving(0.0))


def test_ancestry_depends_on_the_seed_and_nothing_else() -> None:
    assert _saving(0.3) == _saving(0.3)
    assert _saving(0.3) != _saving(0.3, seed=1)


def test_every_beam_has_a_parent_and_the_rate_is_kept() -> None:
    ancestry = BeamAncestry(replacement=0.1)
    steps = [ancestry.num_children(7, length, 4) for length in range(4000)]
    assert all(sum(children) == 4 and min(children) >= 0 for children in steps)
    # a replaced beam has no child, unless it became the parent of another one in the same step
    childless = sum(children.count(0) for children in steps) / (4 * len(steps))
    assert 0.085 < childless < 0.105
    assert BeamAncestry(replacement=1.0).num_children(7, 5, 1) == (1,)


def test_beams_survive_preemption() -> None:
    small = Capacity(num_blocks=17, block_size=4, num_rows=8, num_swap_blocks=64)
    for preemption in ("swap", "recompute"):
        config = SchedulerConfig(
            max_num_batched_tokens=64,
            max_model_len=200,
            prefix_cache=False,
            preemption=preemption,
            prompt_share=1.0,
        )
        executor = SimulatedExecutor(small, STEP_TIME, ancestry=BeamAncestry(replacement=0.2))
        outputs = _run(
            Engine(config, executor),
            _request(0, 4, 20, beam_width=3),
            _request(1, 4, 20, beam_width=3),
        )
        stats = outputs[-1].stats
        assert stats.num_recomputed + stats.num_swapped_out > 0
        assert stats.usage.free == stats.usage.total
        ids = [index for output in outputs for index in output.request_ids]
        assert (ids.count(0), ids.count(1)) == (20, 20)


def test_copies_and_swaps_are_charged() -> None:
    works: list[StepWork] = []

    class Seeing:
        def seconds(self, work: StepWork) -> float:
            works.append(work)
            return 1.0

    _run(Engine(CONFIG, SimulatedExecutor(CAPACITY, Seeing())), _request(0, 10, 4, beam_width=3))
    # the prompt's half block is copied for all but one of the beams
    assert [work.num_copied_blocks for work in works] == [0, 2, 0, 0]
    assert [work.contexts for work in works] == [(10,), (11,) * 3, (12,) * 3, (13,) * 3]
