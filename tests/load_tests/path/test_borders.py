from array import array

import pytest

from load_tests.http.client import Record
from load_tests.http.drive import LoadRun
from load_tests.path.borders import border_times
from load_tests.traffic.schedule import TimedRequest


def record(sent_s: float, *chunk_s: float) -> Record:
    return Record(
        request=TimedRequest(due_s=0.0, input_len=1, output_len=len(chunk_s)),
        sent_s=sent_s,
        chunk_s=array("d", chunk_s),
        chunk_tokens=array("i", [1] * len(chunk_s)),
    )


def test_chunks_are_of_the_last_step_that_has_ended() -> None:
    # steps of 10 ms from 100.0 on, on the clock on which the run begins at 99.9
    ended_s = [100.01 + 0.01 * step for step in range(10)]
    records = (record(0.095, 0.1225, 0.134, 0.141), record(0.1, 0.1315))
    run = LoadRun(records=records, client_cpu_share=0.0, drain_s=None, started_s=99.9)
    times = border_times(run, ended_s, 0.01)
    assert times.inwards == pytest.approx([15.0, 20.0])
    assert times.first == pytest.approx([2.5, 1.5])
    assert times.outwards == pytest.approx([4.0, 1.0])


def test_what_comes_before_the_first_step_is_left_out() -> None:
    run = LoadRun(records=(record(0.0, 1.0),), client_cpu_share=0.0, drain_s=None, started_s=0.0)
    assert border_times(run, [5.0], 0.01).first == []
