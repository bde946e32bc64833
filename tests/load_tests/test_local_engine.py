from itertools import pairwise

import pytest

from load_tests.local_engine import LocalEngine, local_config
from load_tests.model_folders import model_folder
from load_tests.work import Work


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> LocalEngine:
    folder = model_folder("tiny", tmp_path_factory.mktemp("tiny"))
    sizes = {"num_blocks": 64, "max_num_seqs": 4, "max_num_batched_tokens": 64}
    return LocalEngine(local_config(folder, "cpu", max_model_len=128, **sizes))


def test_every_prompt_is_continued_by_as_many_tokens(engine: LocalEngine) -> None:
    prompts = [[11, 12, 13], [14] * 20, [15]]
    outputs = engine.generate(prompts, 5)
    assert [len(output) for output in outputs] == [5, 5, 5]
    # ids go on, and greedy tokens are the same
    assert engine.generate(prompts, 5) == outputs
    assert engine.next_id == 6


def test_requests_come_at_their_times(engine: LocalEngine) -> None:
    first_id = engine.next_id
    arrivals = [Work(prompt=[20 + i] * 4, output_len=2, due_s=0.05 * i) for i in range(3)]
    steps = list(engine.serve(arrivals))
    assert not engine.has_work
    first_s: dict[int, float] = {}
    for step in steps:
        for request_id in step.output.request_ids:
            first_s.setdefault(request_id - first_id, step.end_s)
    assert all(first_s[index] >= arrival.due_s for index, arrival in enumerate(arrivals))
    assert all(before.end_s <= after.start_s for before, after in pairwise(steps))
