import json
from pathlib import Path
from typing import Any

import pytest

from load_tests.traffic.schedule import Extent, TimedRequest, TracedRequest
from load_tests.traffic.trace import Trace, from_schedule, read_traces

ALL = Extent()

OWN: dict[str, Any] = {
    "timestamp": 1_700_000_000_500.25,
    "input_length": 40,
    "output_length": 9,
    "hash_ids": [71, 72],
    "hash_block_size": 16,
    "output_lengths": [9, 3],
    "finish_reasons": ["length", "stop"],
    "beam_width": 0,
    "ttft_s": 0.5,
    "e2e_s": 2.5,
}


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_our_recorders_files_are_one_trace_in_the_order_of_arrival(tmp_path: Path) -> None:
    refused = OWN | {"output_length": 0, "output_lengths": [0], "finish_reasons": ["refused"]}
    write(tmp_path / "a.jsonl", OWN, refused | {"lost_before": 3})
    write(tmp_path / "b.jsonl", OWN | {"timestamp": 1_700_000_000_000, "beam_width": 2})
    trace = read_traces([tmp_path], ALL)
    first, second = trace.requests
    assert (first.due_s, first.beam_width) == (0.0, 2)
    assert second.due_s == pytest.approx(0.50025)
    assert second == TracedRequest(
        due_s=second.due_s,
        input_len=40,
        output_len=9,
        hash_ids=(71, 72),
        hash_block=16,
        n=2,
        ttft_s=0.5,
        e2e_s=2.5,
    )
    assert {name: found.max for name, found in trace.recorded().items()} == {
        "ttft_s": 0.5,
        "tpot_s": 0.25,
        "e2e_s": 2.5,
    }
    assert (trace.num_skipped, trace.num_lost) == (1, 3)


def test_mooncakes_stamps_of_three_seconds_are_spread(tmp_path: Path) -> None:
    rows = [
        {"timestamp": at, "input_length": 700, "output_length": 5, "hash_ids": [0, at]}
        for at in (0, 0, 3000, 3000, 3000, 6000, 6000)
    ]
    trace = read_traces([write(tmp_path / "t.jsonl", *rows)], ALL)
    assert [r.due_s for r in trace.requests] == [0.0, 1.5, 3.0, 4.0, 5.0, 6.0, 7.5]
    assert trace.requests[2].hash_ids == (0, 3000)
    assert trace.requests[2].hash_block == 512


def test_azures_dates_are_seconds(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:16:47.1805900,396,109\n"
    )
    # the unit is that of numbers
    trace = read_traces([path], ALL, seconds_per_unit=1e-3)
    assert [r.due_s for r in trace.requests] == [0.0, pytest.approx(60.5)]
    assert [(r.input_len, r.output_len) for r in trace.requests] == [(374, 44), (396, 109)]


def test_other_formats_have_a_unit_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_len,output_len\n1000,3,4\n3000,5,6\n4000,7,8\n")
    trace = read_traces([path], Extent(duration_s=3.0), seconds_per_unit=1e-3)
    assert [r.due_s for r in trace.requests] == [0.0, 2.0]
    assert [r.due_s for r in trace.faster(4.0).requests] == [0.0, 0.5]
    assert trace.faster(4.0).digest() != trace.digest()


def test_a_trace_starts_at_once_and_ends_at_the_extent(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("timestamp,input_length,output_length\n1000,10,20\n1001,11,21\n1002,12,22\n")
    times = [request.due_s for request in read_traces([path], ALL).requests]
    assert times == [0.0, 1.0, 2.0]
    assert len(read_traces([path], Extent(duration_s=2.0)).requests) == 2
    assert len(read_traces([path], Extent(num_requests=1)).requests) == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("x,1,1", "t.csv:3: timestamp is 'x'"),
        ("nan,1,1", "t.csv:3: timestamp is 'nan'"),
        ("1,0,1", "t.csv:3: .*>= 1.*input_length"),
        ("1,1,2.5", "t.csv:3: .*int.*output_length"),
        ("1,1", "t.csv:3: .*missing.*output_length"),
    ],
)
def test_a_bad_row_of_a_table_is_named(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"timestamp,input_length,output_length\n0,1,1\n{row}\n")
    with pytest.raises(ValueError, match=message):
        read_traces([path], ALL)


@pytest.mark.parametrize(("name", "text"), [("t.jsonl", "{"), ("t.jsonl", "[]"), ("t.txt", "")])
def test_a_file_that_is_no_trace_is_named(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=name):
        read_traces([path], ALL)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"timestamp": 1, "input_length": 4}', r"t\.jsonl:2: .*missing.*output_length"),
        ('{"timestamp": 1, "input_length": 0, "output_length": 4}', r":2: .*>= 1.*input_length"),
        ('{"timestamp": "soon", "input_length": 1, "output_length": 4}', r":2: .*'soon'"),
        ('{"timestamp": "2023-13-01", "input_length": 1, "output_length": 4}', r":2: .*no date"),
        ('{"timestamp": 1', r":2: "),
        (json.dumps(OWN | {"hash_ids": [1, "x"]}), r":2: .*hash_ids"),
        (json.dumps(OWN | {"hash_ids": 3}), r":2: .*hash_ids"),
        (json.dumps(OWN | {"hash_block_size": 0}), r":2: .*>= 1.*hash_block_size"),
        (json.dumps(OWN | {"output_lengths": 9}), r":2: .*output_lengths"),
        (json.dumps(OWN | {"e2e_s": "long"}), r":2: .*float.*e2e_s"),
        (json.dumps(OWN | {"beam_width": -1}), r":2: .*>= 0.*beam_width"),
    ],
)
def test_a_bad_line_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", OWN)
    path.write_text(path.read_text() + text + "\n")
    with pytest.raises(ValueError, match=message):
        read_traces([path], ALL)


def test_nothing_to_replay_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"empty\.jsonl: no request with output"):
        read_traces([write(tmp_path / "empty.jsonl")], ALL)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=r"has no \.jsonl file"):
        read_traces([tmp_path / "folder"], ALL)
    with pytest.raises(ValueError, match="raise --rate"):
        from_schedule(())


def test_drawn_requests_share_nothing() -> None:
    [request] = from_schedule((TimedRequest(due_s=1.0, input_len=2, output_len=3),)).requests
    assert request == TracedRequest(due_s=1.0, input_len=2, output_len=3)
    assert Trace(requests=(request,)).duration_s == 1.0
