import pytest

from engine.config import EngineConfig
from load_tests.model_folders import model_folder
from load_tests.simulator.calibrate.live_worker import LiveWorker, Turn, live_config
from load_tests.simulator.calibrate.points import DEFAULT_POINTS, Points
from load_tests.simulator.calibrate.step_bench import StepBench
from load_tests.simulator.simulated_executor import BeamAncestry


class Noting(LiveWorker):
    """Attributes: turns: all so far."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.turns: list[Turn] = []

    def turn(
        self, *, num_blocks: int = 0, num_rows: int = 0, ancestry: BeamAncestry | None = None
    ) -> Turn:
        turn = super().turn(num_blocks=num_blocks, num_rows=num_rows, ancestry=ancestry)
        self.turns.append(turn)
        return turn


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Noting:
    folder = model_folder("tiny", tmp_path_factory.mktemp("tiny"))
    return Noting(
        live_config(
            folder,
            "cpu",
            "float32",
            max_num_seqs=8,
            max_num_batched_tokens=256,
            max_model_len=256,
            num_blocks=200,
        )
    )


POINTS = Points(
    batches=(2, 5),
    contexts=(40, 100),
    prompt_lens=(8, 64),
    mixed_batches=(5,),
    shared_len=96,
    repeats=5,
    num_mixed=2,
)


def _prompts(turn: Turn) -> list[int]:
    """Tokens of prompts in each step."""
    return [sum(step.work.new_tokens) - step.work.num_decodes for step in turn.steps]


def test_contexts_of_a_batch_differ_around_what_is_measured(worker: Noting) -> None:
    assert len(StepBench(worker, POINTS).decodes(5)) == 2
    contexts = worker.turns[-1].steps[-1].work.contexts
    # the oldest first
    assert list(contexts) == sorted(set(contexts), reverse=True)
    assert sum(contexts) / 5 == pytest.approx(100, abs=POINTS.repeats)


def test_a_batch_beside_prompts_goes_on_from_length_to_length(worker: Noting) -> None:
    count = len(worker.turns)
    assert len(StepBench(worker, POINTS).prompts_beside(5)) == 2
    assert len(worker.turns) == count + 1
    prompts = _prompts(worker.turns[-1])
    # the first of each is not counted
    assert prompts.count(8) == prompts.count(64) == 1 + POINTS.num_mixed


def test_what_all_share_is_computed_once(worker: Noting) -> None:
    assert 0 <= StepBench(worker, POINTS).shared_cost([(1.0, 2.0), (1.0, 2.0)]) <= 1
    prompts = _prompts(worker.turns[-1])
    # a prefix and a block, then the last block of each of five
    assert sum(prompts) == 96 + 16 + 5 * 16


def test_graphs_for_decodes_and_prompts_are_all_measured() -> None:
    points = DEFAULT_POINTS["cuda"]
    assert {*points.mixed_batches} <= {*points.batches}
    assert {*points.brief_batches} < {*points.batches}
    assert points.batches == tuple(sorted({*points.batches}))
    assert points.batches[-1] == points.sizes[-1] == points.padded_batch
    assert points.batches[-1] not in points.brief_batches
