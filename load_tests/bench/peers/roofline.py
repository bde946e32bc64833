"""The least time a card could take for a measure: every phase of every step at a limit of it."""

from engine.config import ModelConfig, SchedulerConfig
from engine.types import Capacity
from load_tests.bench.peers.measures import Beam, Decode, Knobs, Measure, Offline
from load_tests.card import Ceilings
from load_tests.simulator.replay import Setup, replay
from load_tests.simulator.roofline import RooflineStepTime, roofline_of
from load_tests.simulator.step_time import StepWork
from load_tests.traffic.lognormal import draw_pairs
from load_tests.traffic.schedule import Schedule, TimedRequest


def least_seconds(
    measure: Measure, model: ModelConfig, knobs: Knobs, ceilings: Ceilings
) -> float | None:
    """Time of a step for `Decode`, of everything for batches; None where arrivals set the pace.

    Batches are replayed through the scheduler, so what waits for a place waits here too.
    """
    step_time = roofline_of(model, ceilings)
    match measure:
        case Decode():
            # the average of the steps of the second half
            context = measure.input_len + (3 * measure.output_len + 1) / 2
            return step_time.seconds(StepWork.alike(measure.batch, round(context)))
        case Offline():
            pairs = draw_pairs(measure.trace, measure.num_requests, measure.seed)
            return _replay_seconds(_setup(knobs, step_time), _at_once(pairs))
        case Beam():
            pairs = [(measure.input_len, measure.output_len)] * measure.num_prompts
            setup = _setup(knobs, step_time, n=measure.width, beam_width=measure.width)
            return _replay_seconds(setup, _at_once(pairs))
    return None


def _setup(knobs: Knobs, step_time: RooflineStepTime, *, n: int = 1, beam_width: int = 0) -> Setup:
    return Setup(
        config=SchedulerConfig(
            max_num_batched_tokens=knobs.max_num_batched_tokens,
            max_model_len=knobs.max_model_len,
            prefix_cache=False,
            prompt_share=1.0,
            long_step_share=1.0,
        ),
        capacity=Capacity(
            num_blocks=knobs.num_blocks, block_size=knobs.block_size, num_rows=knobs.max_num_seqs
        ),
        step_time=step_time,
        n=n,
        beam_width=beam_width,
    )


def _at_once(pairs: list[tuple[int, int]]) -> Schedule:
    return tuple(TimedRequest(due_s=0.0, input_len=i, output_len=o) for i, o in pairs)


def _replay_seconds(setup: Setup, schedule: Schedule) -> float:
    return replay(setup, schedule).samples[-1].end_s
