import argparse
import gzip
import json
from array import array
from pathlib import Path

import pytest

from load_tests.bench.serving.command import Loaded, ServedRace, add_arguments, options_of, run
from load_tests.bench.serving.contenders import Contender
from load_tests.bench.serving.passes import pass_of
from load_tests.free_port import free_port
from load_tests.http.client import Record
from load_tests.http.drive import LoadRun
from load_tests.report import Report
from load_tests.traffic.schedule import TimedRequest
from tests.load_tests import own_process


def test_vllm_on_a_cpu_needs_an_environment_of_its_own() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(ValueError, match="needs --vllm-python"):
        run(parser.parse_args(["--device", "cpu", "--peer", "vllm"]))


def test_options_of_ours_are_yaml() -> None:
    assert options_of(["a=1.5", "b=x=y"]) == {"a": 1.5, "b": "x=y"}
    with pytest.raises(ValueError, match="'a' is no option: write NAME=VALUE"):
        options_of(["a"])


def loaded(server: str, first_s: float) -> Loaded:
    request = TimedRequest(due_s=0.5, input_len=4, output_len=2)
    record = Record(
        request=request,
        sent_s=0.5,
        chunk_s=array("d", [first_s, first_s + 0.02]),
        chunk_tokens=array("i", [1, 1]),
    )
    recorded = LoadRun(records=(record,), client_cpu_share=0.1, drain_s=None)
    figures = pass_of(server, "9 req/s", recorded, server_cpu_s=3.0, client_cpu_s=1.0)
    return Loaded(figures, recorded)


def test_a_race_that_is_cut_has_all_requests_of_its_passes_and_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = Contender(name="ours", command=("serve",), url="", environment={})
    race = ServedRace(Report(tmp_path, "serving_x"), [ours])
    race.add(loaded("ours", 0.6))
    race.add(loaded("ours", 0.8))
    race.show()
    assert "200.0" in capsys.readouterr().out
    passes = json.loads((tmp_path / "serving_x.json").read_text())["passes"]
    assert [one["cpu_s"] for one in passes] == [4.0, 4.0]
    with gzip.open(tmp_path / "serving_x_requests.jsonl.gz", "rt") as file:
        lines = [json.loads(line) for line in file]
    assert [(line["server"], line["case"], line["pass"]) for line in lines] == [
        ("ours", "9 req/s", 0),
        ("ours", "9 req/s", 1),
    ]
    assert [line["chunk_s"] for line in lines] == [[0.6, 0.62], [0.8, 0.82]]


@pytest.mark.ray
@pytest.mark.slow
def test_two_servers_are_raced(tmp_path: Path) -> None:
    words = ["serving", "--model", "embedded", "--port", str(free_port()), "--passes", "1"]
    words += ["--rate", "4", "--duration-s", "2", "--concurrency", "2", "--turnover", "2"]
    words += ["--lengths", "fixed:8:4", "--max-num-seqs", "8", "--max-num-batched-tokens", "64"]
    words += ["--dtype", "bfloat16", "--threads", "2", "--warm-up", "4"]
    done = own_process.run(*words, "--max-model-len", "128", "--output", str(tmp_path))
    before, _, after = done.stdout.partition("starting the engine in process")
    assert "Medians of the passes" in before, done.stdout + done.stderr
    assert "Medians of the passes" in after, done.stdout + done.stderr
    [file] = tmp_path.glob("serving_*.json")
    passes = json.loads(file.read_text())["passes"]
    servers = ["pagoda", "pagoda again"] * 2 + ["in process"] * 2
    assert [one["server"] for one in passes] == servers
    assert all(one["num_failed"] == 0 and one["server_cpu_s"] > 0 for one in passes)
    # the other server has nothing to do, but is not still
    assert all(0 < one["idle_cpu_s"] < one["server_cpu_s"] for one in passes[:-2])
