from pathlib import Path

import pytest

from engine.config import SchedulerConfig
from load_tests.model_folders import model_folder
from load_tests.simulator.calibrate.live_worker import LiveWorker, live_config
from load_tests.simulator.clocks import LiveClock
from load_tests.simulator.replay import Replay, Setup, replay
from load_tests.simulator.simulated_executor import BeamAncestry
from load_tests.traffic.schedule import TimedRequest

_SIZES = {
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "max_model_len": 64,
    "num_blocks": 32,
}


class _Nothing:
    def seconds(self, work: object) -> float:
        raise AssertionError(work)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> LiveWorker:
    folder = model_folder("tiny", tmp_path_factory.mktemp("tiny"))
    return LiveWorker(live_config(folder, "cpu", "float32", **_SIZES))


def _serve(
    worker: LiveWorker,
    until_s: float = float("inf"),
    *,
    num_blocks: int = 0,
    width: int = 0,
    replacement: float = 0.0,
) -> Replay:
    ancestry = BeamAncestry(replacement=replacement) if width else None
    turn = worker.turn(num_blocks=num_blocks, ancestry=ancestry)
    setup = Setup(
        config=SchedulerConfig(
            max_num_batched_tokens=64, max_model_len=64, prefix_cache=False, prompt_share=1.0
        ),
        capacity=turn.capacity,
        step_time=_Nothing(),
        n=width or 1,
        beam_width=width,
    )
    timed = TimedRequest(due_s=0.0, input_len=9, output_len=20)
    try:
        done = replay(
            setup, (timed,) * 6, until_s=until_s, executor=turn, clock=LiveClock(turn.timer)
        )
    finally:
        turn.close()
    assert len(turn.steps) == len(done.samples)
    assert all(step.step_s > 0 for step in turn.steps)
    return done


def test_engines_take_turns_at_a_worker_whatever_the_last_one_left(worker: LiveWorker) -> None:
    left = _serve(worker, 1e-6)
    assert [served.finish_s for served in left.requests] == [None] * 6
    for _ in range(2):
        assert all(served.finish_s for served in _serve(worker).requests)


@pytest.mark.slow
def test_several_ranks_serve_and_copy_as_one_does(tmp_path: Path) -> None:
    folder = model_folder("tiny", tmp_path)
    config = live_config(folder, "cpu", "float32", **_SIZES, tensor_parallel_size=2)
    ranks = LiveWorker(config)
    try:
        assert all(served.finish_s for served in _serve(ranks).requests)
        assert ranks.block_copy_s(repeats=2) > 0
    finally:
        ranks.close()


def test_an_engine_sees_only_the_blocks_it_was_given(worker: LiveWorker) -> None:
    done = _serve(worker, num_blocks=4)
    assert {step.usage.total for step in done.samples} == {4 * 16}
    assert all(served.finish_s for served in done.requests)


def test_beams_have_the_ancestry_that_is_asked_for(worker: LiveWorker) -> None:
    for replacement in (0.0, 0.5):
        done = _serve(worker, width=4, replacement=replacement)
        assert all(served.finish_s for served in done.requests)
        # four beams of two blocks each; those with a common parent share some
        held = [
            (step.usage.total - step.usage.free) // 16
            for step in done.samples
            if step.num_logical_blocks == 8
        ]
        assert (min(held) < 8) is (replacement > 0), held


def test_a_copied_block_takes_time(worker: LiveWorker) -> None:
    assert worker.block_copy_s(num_blocks=4, repeats=3) > 0
