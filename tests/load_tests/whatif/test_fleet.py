"""A fleet of replicas in virtual time."""

from dataclasses import replace
from typing import Any

import pytest

from engine.config import EngineConfig, ModelConfig
from engine.types import Capacity
from load_tests.simulator.step_time import LinearStepTime
from load_tests.traffic.latencies import Objective
from load_tests.traffic.schedule import TracedRequest
from load_tests.traffic.trace import Trace
from load_tests.whatif.fleet import replay_trace
from load_tests.whatif.replays import Figures, measure
from load_tests.whatif.replica import USES, ReplicaSetup

# every step takes one second
STEP_TIME = LinearStepTime(
    weights_s=1.0, token_s=0.0, context_token_s=0.0, step_s=0.0, sequence_s=0.0
)
MODEL = ModelConfig(
    architecture="LlamaForCausalLM", vocab_size=8, hidden_size=8, intermediate_size=8,
    num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8, max_position=64, norm_eps=1e-5,
)  # fmt: skip
LEVEL = Objective(ttft_s=2.0, tpot_s=1.0)


def replica(num_blocks: int = 64, **settings: Any) -> ReplicaSetup:
    sizes = {"num_blocks": num_blocks, "block_size": 4, "max_num_seqs": 4, "max_model_len": 64}
    fields = {
        "watermark": 0.0,
        "growth_blocks": 0.0,
        "run_ahead": 1,
        "max_num_batched_tokens": 256,
        **sizes,
        **settings,
    }
    config = EngineConfig.from_options(
        model_path="", model=MODEL, dtype="float32", device="cpu", **fields
    )
    capacity = Capacity(num_blocks=num_blocks, block_size=4, num_rows=config.max_num_seqs)
    return ReplicaSetup(config=config, capacity=capacity, step_time=STEP_TIME)


def trace(*rows: tuple[float, int, int], **fields: Any) -> Trace:
    return Trace(
        requests=tuple(
            TracedRequest(due_s=due_s, input_len=i, output_len=o, **fields) for due_s, i, o in rows
        )
    )


def figures(of: ReplicaSetup, what: Trace, **options: Any) -> Figures:
    return measure(replay_trace(of, what, **options), LEVEL)


def test_latencies_count_from_arrival() -> None:
    found = figures(replica(), trace((0.5, 4, 3), (1.0, 4, 1), (100.0, 4, 2)))
    assert found.ttft_s is not None
    assert found.e2e_s is not None
    assert found.tpot_s is not None
    # the second waits for the step that began before it came
    assert (found.ttft_s.max, found.e2e_s.max, found.tpot_s.mean) == (1.5, 3.0, 1.0)
    assert (found.makespan_s, found.busy_share) == (102.0, 5 / 102)
    assert found.good_share == 1.0
    assert found.requests_per_s == 3 / 102
    assert found.output_tokens_per_s == 6 / 102
    assert sum(found.uses.values()) == pytest.approx(100.0)
    assert list(found.uses) == list(USES)


def test_equal_hashes_share_blocks_of_any_size() -> None:
    # 12 tokens in blocks of 8, the second one half full, and the same in the pool's blocks of 4
    alike = trace((0.0, 12, 20), (5.0, 12, 20), hash_ids=(7, 8), hash_block=8)
    found = figures(replica(), alike)
    # a prompt's last token is always computed
    assert found.cached_share == pytest.approx(100 * 8 / 24)
    assert found.shared_saving > 0
    other = replace(alike.requests[1], hash_ids=(7, 9))
    half = figures(replica(), Trace(requests=(alike.requests[0], other)))
    assert half.cached_share == pytest.approx(100 * 8 / 24)
    none = figures(replica(), trace((0.0, 12, 20), (5.0, 12, 20)))
    assert (none.cached_share, none.shared_saving) == (0.0, 0.0)
    off = figures(replica(prefix_cache=False), alike)
    assert off.cached_share == 0.0


def test_a_pool_that_is_too_small_preempts_and_counts_for_whom() -> None:
    replayed = replay_trace(replica(num_blocks=9), trace((0.0, 8, 20), (0.0, 8, 20)))
    found = measure(replayed, LEVEL)
    assert found.num_recomputed > 0
    assert [served.num_preemptions for served in replayed.served] == [0, found.num_recomputed]


def test_what_a_replica_would_refuse_is_refused() -> None:
    too_long, fits = (0.0, 64, 1), (0.0, 4, 1)
    found = figures(replica(), trace(too_long, fits))
    assert (found.num_requests, found.num_refused) == (2, 1)
    assert found.good_share == 0.5
    crowded = replica(max_num_seqs=1, max_num_waiting=2)
    assert figures(crowded, trace(*[(0.0, 4, 9)] * 5)).num_refused == 3
    refused = figures(replica(), trace(too_long))
    assert (refused.e2e_s, refused.makespan_s) == (None, 0.0)


def test_requests_go_to_the_less_loaded_replica() -> None:
    crowd = trace(*[(2.0 * i, 4, 20) for i in range(8)])
    single = figures(replica(max_num_seqs=1), crowd)
    eight = figures(replica(max_num_seqs=1), crowd, num_replicas=4)
    assert single.e2e_s is not None
    assert eight.e2e_s is not None
    assert eight.e2e_s.max < single.e2e_s.max / 2
    assert eight == figures(replica(max_num_seqs=1), crowd, num_replicas=4)
    assert eight != figures(replica(max_num_seqs=1), crowd, num_replicas=4, seed=1)


def test_requests_follow_their_prefix_unless_two_choices_are_asked_for() -> None:
    sizes = {"block_size": 4, "max_model_len": 1024, "max_num_batched_tokens": 1024}
    setup = replica(num_blocks=1024, **sizes)
    # each of 6 conversations comes back for 8 turns, when its replica has reported
    rows = [
        TracedRequest(
            due_s=20.0 * turn + number, input_len=400, output_len=2,
            hash_ids=tuple(range(100 * number, 100 * number + 3)), hash_block=128,
        )
        for turn in range(8)
        for number in range(6)
    ]  # fmt: skip
    what = Trace(requests=tuple(rows))
    shares = {
        routing: figures(setup, what, num_replicas=3, routing=routing).cached_share
        for routing in ("prefix", "two_choices")
    }
    # all turns but the first of each conversation
    assert shares["prefix"] == pytest.approx(100 * 384 / 400 * 7 / 8)
    assert shares["two_choices"] < 0.8 * shares["prefix"]


@pytest.mark.parametrize("run_ahead", [1, 2])
def test_samples_and_beams_end_once(run_ahead: int) -> None:
    for fields in ({"n": 3}, {"n": 2, "beam_width": 3}):
        replayed = replay_trace(replica(run_ahead=run_ahead), trace((0.0, 6, 5), **fields))
        [served] = replayed.served
        assert served.first_token_s is not None
        assert served.finish_s == 5.0
