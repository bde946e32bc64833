import pytest

from engine.runtime.routing.replica_load import ReplicaLoad


def test_a_load_survives_its_way_through_serve() -> None:
    load = ReplicaLoad(
        report=7, waiting_tokens=3.5, tokens_per_s=10.0, num_waiting=2, total_tokens=64,
        free_tokens=16, block_size=4, is_unready=True, marks=b"1234",
    )  # fmt: skip
    assert ReplicaLoad.of_stats(load.to_stats()) == load


def test_no_report_is_no_load() -> None:
    assert ReplicaLoad.of_stats({}) is None


def test_what_was_sent_counts_as_in_use() -> None:
    load = ReplicaLoad(total_tokens=100, free_tokens=75)
    assert load.kv_usage() == pytest.approx(0.25)
    assert load.kv_usage(50) == pytest.approx(0.75)
