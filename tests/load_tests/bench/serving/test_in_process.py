from collections.abc import Iterator
from pathlib import Path

import pytest

from load_tests.bench.serving import in_process
from load_tests.bench.serving.contenders import ServerLimits, pagoda
from load_tests.http.metrics import measure
from load_tests.http.session import Case
from load_tests.local_engine import LocalEngine
from load_tests.model_folders import model_folder
from load_tests.traffic.latencies import DEFAULT_OBJECTIVE
from load_tests.traffic.lengths import FixedLengths
from load_tests.traffic.schedule import TimedRequest, at_once


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    scratch = tmp_path_factory.mktemp("served")
    limits = ServerLimits(
        model=model_folder("tiny", scratch),
        device="cpu",
        max_num_seqs=4,
        max_num_batched_tokens=48,
        max_model_len=64,
        gpu_memory_fraction=0.5,
    )
    file = pagoda("ours", limits, 8111, scratch).command[-1]
    config = in_process.served_config(Path(file))
    assert (config.max_num_seqs, config.scheduler.max_num_batched_tokens) == (4, 48)
    with in_process.started(config) as engine:
        yield engine


def test_a_closed_loop_keeps_as_many_open_as_it_says(engine: LocalEngine) -> None:
    case = Case(label="2", schedule=at_once(FixedLengths(4, 3), 5, 0), concurrency=2)
    run = in_process.run_case(engine, case, 64, 0)
    assert [list(record.chunk_tokens) for record in run.records] == [[1, 1, 1]] * 5
    begun = [(record.request.due_s, 1) for record in run.records]
    events = sorted([*begun, *((record.chunk_s[-1], -1) for record in run.records)])
    depths = [sum(change for _, change in events[: index + 1]) for index in range(len(events))]
    assert max(depths) == 2
    figures = measure(run, DEFAULT_OBJECTIVE)
    assert (figures.num_finished, figures.invalid) == (5, None)


def test_an_open_loop_waits_for_what_is_due(engine: LocalEngine) -> None:
    requests = [TimedRequest(due_s=due_s, input_len=4, output_len=2) for due_s in (0.0, 0.05)]
    run = in_process.run_case(engine, Case(label="rate", schedule=tuple(requests)), 64, 0)
    assert [record.request for record in run.records] == requests
    assert run.records[1].chunk_s[0] >= 0.05


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"missing\.yaml"):
        in_process.served_config(tmp_path / "missing.yaml")
