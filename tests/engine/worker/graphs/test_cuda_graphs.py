"""Decode steps that are replayed, on a CPU whose recordings are the work itself."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.core.scheduling.preemption import Preemption
from engine.types import FinishReason, SamplingParams
from engine.worker.batch import lay_out
from engine.worker.graphs.cuda_graphs import Computation, CudaGraphs
from engine.worker.graphs.graph_batch import MAX_CHUNKS, GraphShape
from kernels.batch import BatchLayout, Sampled, SamplingColumns
from kernels.reference import ReferenceBackend
from tests.engine.model.tiny import TinyModel
from tests.engine.rows import BLOCK_SIZE, Chunk, admission, make_plan, make_table
from tests.engine.whole.engine_run import RECOMPUTE, SWAP, SWAP_BYTES, Run, run, tokens_of
from tests.engine.worker.plans import Driver
from tests.fakes.scripted_worker import engine_config
from tests.fakes.worker_loader import POISON, BreakingModel, Replayer, loader

_GREEDY = SamplingParams(max_tokens=24, temperature=0.0)
_DRAWING = SamplingParams(max_tokens=17, temperature=1.2, seed=9)
_PROMPTS = [list(range(start, start + length)) for start, length in ((3, 5), (60, 16), (90, 23))]


def _graphed(
    tiny: TinyModel, samplings: list[SamplingParams], **settings: Any
) -> tuple[Run, Replayer]:
    runtime = Replayer()
    return run(tiny, _PROMPTS, samplings, load=loader(runtime), **settings), runtime


@pytest.mark.parametrize("compiled_kernels", [False, True])
def test_replayed_decodes_give_the_same_tokens(tiny: TinyModel, compiled_kernels: bool) -> None:
    samplings = [_GREEDY, _DRAWING, replace(_DRAWING, top_k=5, top_p=0.9)]
    settings = {"block_size": 4, "compiled_kernels": compiled_kernels}
    graphed, runtime = _graphed(tiny, samplings, **settings)
    assert tokens_of(graphed) == tokens_of(run(tiny, _PROMPTS, samplings, **settings))
    assert runtime.num_replays == len([plan for plan in graphed.plans if plan.num_tokens])


@pytest.mark.parametrize("preemption", [RECOMPUTE, SWAP])
def test_replayed_decodes_survive_preemptions(tiny: TinyModel, preemption: Preemption) -> None:
    settings = {
        "block_size": 4,
        "num_blocks": 24,
        "max_model_len": 96,
        "swap_bytes": SWAP_BYTES,
        "preemption": preemption,
    }
    graphed, runtime = _graphed(tiny, [replace(_GREEDY, max_tokens=40)] * 3, **settings)
    calm = run(tiny, _PROMPTS, replace(_GREEDY, max_tokens=40))
    assert sum(graphed.num_preempted) > 0
    assert tokens_of(graphed) == tokens_of(calm)
    assert runtime.num_replays > 0


def test_choices_are_replayed_from_their_prompts_on(tiny: TinyModel) -> None:
    samplings = [replace(_DRAWING, n=3), _GREEDY, replace(_DRAWING, n=2)]
    settings = {"block_size": 4, "max_num_seqs": 12}
    graphed, runtime = _graphed(tiny, samplings, **settings)
    assert tokens_of(graphed) == tokens_of(run(tiny, _PROMPTS, samplings, **settings))
    assert runtime.num_replays == len([plan for plan in graphed.plans if plan.num_tokens])


def test_more_choices_than_a_graph_has_room_for_are_launched(tiny: TinyModel) -> None:
    samplings = [replace(_DRAWING, n=MAX_CHUNKS), _GREEDY, _GREEDY]
    settings = {"block_size": 4, "max_num_seqs": MAX_CHUNKS + 2, "num_blocks": 400}
    graphed, runtime = _graphed(tiny, samplings, **settings)
    assert tokens_of(graphed) == tokens_of(run(tiny, _PROMPTS, samplings, **settings))
    launched = len([plan for plan in graphed.plans if plan.num_tokens]) - runtime.num_replays
    assert launched == 1


def test_prompts_beside_beams_are_replayed(tiny: TinyModel) -> None:
    beams = replace(_GREEDY, beam_width=4, n=4)
    runtime = Replayer()
    engine = Run(tiny, load=loader(runtime), max_num_seqs=32)
    num_common = runtime.num_captures
    for index, prompt in enumerate(_PROMPTS):
        engine.add(index, prompt, beams)
        for _ in range(3):
            engine.step()
    engine.drain()
    assert runtime.num_captures == num_common
    assert runtime.num_replays == len([plan for plan in engine.plans if plan.num_tokens])
    assert tokens_of(engine) == tokens_of(run(tiny, _PROMPTS, beams, max_num_seqs=32))


def test_log_probabilities_of_prompts_are_looked_up_behind_the_graph(tiny: TinyModel) -> None:
    samplings = [_GREEDY, replace(_GREEDY, num_logprobs=2, prompt_logprobs=2), _GREEDY]
    graphed, runtime = _graphed(tiny, samplings)
    launched = run(tiny, _PROMPTS, samplings)
    assert tokens_of(graphed) == tokens_of(launched)
    assert runtime.num_replays == len([plan for plan in graphed.plans if plan.num_tokens])


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "special",
    [
        {"num_logprobs": 0},
        {"num_logprobs": 9},
        {"num_logprobs": 3, "deterministic": True},
        {"beam_width": 3, "n": 3},
        {"beam_width": 5, "n": 2, "num_logprobs": 12},
    ],
)
@pytest.mark.parametrize("num_blocks", [256, 34])
def test_searches_and_log_probabilities_are_replayed_beside_plain_rows(
    tiny: TinyModel, special: dict[str, Any], num_blocks: int
) -> None:
    samplings = [_GREEDY, replace(_GREEDY, **special), replace(_DRAWING, top_k=5)]
    settings = {
        "block_size": 4,
        "num_blocks": num_blocks,
        "max_model_len": 96,
        "swap_bytes": SWAP_BYTES,
        "preemption": SWAP,
    }
    graphed, runtime = _graphed(tiny, samplings, **settings)
    launched = run(tiny, _PROMPTS, samplings, **settings)
    for key, reported in launched.reported.items():
        assert graphed.reported[key].tokens == reported.tokens
        assert graphed.reported[key].logprobs == pytest.approx(
            reported.logprobs, abs=1e-5, nan_ok=True
        )
        ids = [[token for token, _ in top] for top in reported.tops]
        assert [[token for token, _ in top] for top in graphed.reported[key].tops] == ids
    assert runtime.num_replays > len(graphed.plans) / 2


def test_common_searches_are_recorded_at_the_start(tiny: TinyModel) -> None:
    runtime = Replayer()
    engine = Run(tiny, load=loader(runtime), max_num_seqs=16)
    num_common = runtime.num_captures
    for index, width in enumerate((2, 4, 8)):
        engine.add(index, _PROMPTS[0], replace(_GREEDY, beam_width=width, n=width))
        engine.drain()
    assert runtime.num_captures == num_common
    engine.add(3, _PROMPTS[0], replace(_GREEDY, beam_width=10, n=1))
    engine.drain()
    assert runtime.num_captures == num_common + 1


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "special",
    [
        {"presence_penalty": 0.5, "repetition_penalty": 1.5},
        {"min_tokens": 3, "stop_token_ids": (7,)},
        {"logit_bias": ((5, 4.0), (9, -100.0))},
        {"allowed_token_ids": tuple(range(40, 90)), "num_logprobs": 3},
        {"logprob_token_ids": (41, 7, 90), "num_logprobs": 3},
        {"bad_words": ((5,), (17, 33)), "n": 3, "temperature": 1.4},
        {"prompt_logprobs": 4},
        {"beam_width": 3, "n": 2, "min_tokens": 4, "stop_token_ids": (7,)},
        {"frequency_penalty": 1.0, "deterministic": True},
    ],
)
@pytest.mark.parametrize("num_blocks", [256, 40])
def test_rows_with_rules_are_replayed_beside_plain_rows(
    tiny: TinyModel, special: dict[str, Any], num_blocks: int, choices: list[GraphShape]
) -> None:
    """And chosen behind the graph; steps that prefill what is deterministic have none."""
    samplings = [_GREEDY, replace(_GREEDY, **special), replace(_DRAWING, top_k=9, num_logprobs=2)]
    settings = {
        "block_size": 4,
        "num_blocks": num_blocks,
        "max_model_len": 96,
        "swap_bytes": SWAP_BYTES,
        "preemption": SWAP,
        "max_num_seqs": 10,
    }
    graphed, runtime = _graphed(tiny, samplings, **settings)
    launched = run(tiny, _PROMPTS, samplings, **settings)
    assert tokens_of(graphed) == tokens_of(launched)
    for key, reported in launched.reported.items():
        expected = pytest.approx(reported.logprobs, abs=1e-5, nan_ok=True)
        assert graphed.reported[key].logprobs == expected
    num_steps = len([plan for plan in graphed.plans if plan.num_tokens])
    prefilling = [plan for plan in graphed.plans if plan.prefill_rows]
    num_launched = len(prefilling) if "deterministic" in special else 0
    assert runtime.num_replays == num_steps - num_launched + len(choices)


def test_common_rules_are_recorded_at_the_start(tiny: TinyModel) -> None:
    runtime = Replayer()
    engine = Run(tiny, load=loader(runtime), max_num_seqs=16)
    num_common = runtime.num_captures
    rules: list[dict[str, Any]] = [{"presence_penalty": 1.0}, {"logit_bias": ((4, 1.0),)}]
    for index, rule in enumerate(rules):
        engine.add(index, _PROMPTS[0], replace(_GREEDY, num_logprobs=index, **rule))
        engine.drain()
    assert runtime.num_captures == num_common


def test_a_chunk_that_goes_on_may_come_before_one_that_ends(tiny: TinyModel) -> None:
    runtime = Replayer()
    driver = Driver(loader(runtime)(tiny.config(block_size=4)))
    decoding, ending, going_on = (driver.admit(prompt) for prompt in _PROMPTS)
    driver.prefill(decoding, 64)
    result = driver.step([decoding], [(going_on, 7), (ending, 16)])
    assert list(result.rows) == [decoding.row, ending.row]
    driver.step([decoding, ending], [(going_on, 16)])
    assert runtime.num_replays == 3
    for row in (decoding, ending, going_on):
        driver.generate(row, 8)
        assert row.output[:8] == tiny.greedy(row.tokens[: row.prompt_len], 8)


def test_draws_need_no_graphs_of_their_own(tiny: TinyModel) -> None:
    runtime = Replayer()
    engine = Run(tiny, load=loader(runtime))
    num_common = runtime.num_captures
    for index, sampling in enumerate((_DRAWING, replace(_DRAWING, top_p=0.5, top_k=40))):
        engine.add(index, _PROMPTS[index], sampling)
        engine.drain()
    assert runtime.num_captures == num_common
    assert runtime.num_replays == len([plan for plan in engine.plans if plan.num_tokens])


def test_a_broken_row_that_is_decoded_ahead_ends_by_itself(tiny: TinyModel) -> None:
    runtime = Replayer()
    engine = Run(tiny, load=loader(runtime, BreakingModel))
    prompts = [[1, 2, 3], [1, POISON], [4, 5]]
    for index, prompt in enumerate(prompts):
        engine.add(index, prompt, _GREEDY)
    engine.drain()
    assert (engine.reported[1, 0].tokens, engine.reported[1, 0].reason) == ([], FinishReason.ERROR)
    for index in (0, 2):
        assert engine.reported[index, 0].tokens == tiny.greedy(prompts[index], 24)
    # the plan made ahead had the broken row, too
    assert [len(plan.decode_rows) for plan in engine.plans[:3]] == [0, 3, 2]
    assert runtime.num_replays == len(engine.plans)


def _feed(tokens: Tensor, layout: BatchLayout) -> Tensor:
    """The hidden state of a token is the token."""
    return tokens[:, None]


def _next(hidden: Tensor, layout: BatchLayout, columns: SamplingColumns) -> Sampled:
    """The token of each row that is sampled is the one it was fed, plus 1."""
    return Sampled(tokens=hidden[:, 0] + 1)


def _next_masked(
    hidden: Tensor, columns: SamplingColumns, places: Tensor, masks: Tensor
) -> Sampled:
    return Sampled(tokens=hidden[:, 0] + 1)


def _graphs(max_num_rows: int = 16, max_num_tokens: int = 256) -> CudaGraphs:
    """CudaGraphs of a table of plain rows, of which row 1 draws, 2 is deterministic, 3 has rules,
    4 and 5 want log-probabilities.
    """
    table = make_table(64)
    kinds: dict[int, dict[str, Any]] = {
        1: {"temperature": 1.0},
        2: {"deterministic": True},
        3: {"min_tokens": 2},
        4: {"num_logprobs": 9},
        5: {"num_logprobs": 0},
    }
    table.admit([admission(row, length=3, **kinds.get(row, {})) for row in range(64)])
    backend = ReferenceBackend(torch.device("cpu"), torch.float32)
    return CudaGraphs(
        table,
        backend,
        Computation(_feed, _next, _next_masked),
        engine_config(ranks=1).with_options(
            max_num_seqs=max_num_rows,
            max_num_batched_tokens=max_num_tokens,
            block_size=BLOCK_SIZE,
        ),
    )


def _chunk(row: int, num_tokens: int) -> Chunk:
    return Chunk(row, 0, [1] * num_tokens)


def test_the_smallest_graph_that_holds_the_decodes_is_taken() -> None:
    graphs = _graphs()
    found = [graphs.find(make_plan(range(10, 10 + count))) for count in (1, 3, 4, 9, 16)]
    assert found == [GraphShape(size) for size in (1, 4, 4, 12, 16)]
    assert graphs.find(make_plan()) is None


def test_one_row_that_draws_makes_a_step_of_draws() -> None:
    assert _graphs().find(make_plan([10, 1])) == GraphShape(2, is_random=True)


def test_a_mixed_step_takes_the_smallest_graph_that_holds_decodes_and_prompts() -> None:
    graphs = _graphs()
    for num_decodes, num_tokens, size, prompt_size in (
        (0, 1, 8, 64),
        (8, 64, 8, 64),
        (9, 64, 16, 64),
        (8, 65, 8, 128),
        (16, 200, 16, 256),
    ):
        plan = make_plan(range(10, 10 + num_decodes), [_chunk(40, num_tokens)])
        assert graphs.find(plan) == GraphShape(size, prompt_size, is_random=True)
    assert graphs.find(make_plan([10], [_chunk(40, 257)])) is None


def test_longer_steps_of_a_small_model_are_replayed_up_to_the_budget() -> None:
    graphs = _graphs(max_num_tokens=2560)
    for num_tokens, found in (
        (769, GraphShape(16, 1024, is_random=True)),
        (1500, GraphShape(16, 1536, is_random=True)),
        (2048, GraphShape(16, 2048, is_random=True)),
        (2049, None),
    ):
        plan = make_plan(range(6, 14), [_chunk(20, num_tokens)])
        assert graphs.find(plan) == found


def test_chunks_and_siblings_beyond_the_room_are_launched() -> None:
    graphs = _graphs()
    chunks = [_chunk(row, 1) for row in range(10, 10 + MAX_CHUNKS - 1)]
    assert graphs.find(make_plan([], chunks, [(60, 10)])) is not None
    assert graphs.find(make_plan([], chunks, [(60, 10), (61, 10)])) is None


def test_deterministic_rows_decode_apart_from_prompts() -> None:
    graphs = _graphs()
    assert graphs.find(make_plan([10, 2])) == GraphShape(8, is_random=True, is_deterministic=True)
    assert graphs.find(make_plan([2], [_chunk(10, 5)])) is None
    assert graphs.find(make_plan([10], [_chunk(2, 5)])) is None


@pytest.mark.parametrize(
    ("decodes", "chunks", "siblings"),
    [([10, 3], [], []), ([10], [_chunk(3, 2)], []), ([], [_chunk(10, 2)], [(3, 10)])],
)
def test_a_row_with_rules_makes_a_ruled_step_wherever_it_stands(
    decodes: list[int], chunks: list[Chunk], siblings: list[tuple[int, int]]
) -> None:
    plan = make_plan(decodes, chunks, siblings)
    # whatever else its rows want is chosen behind the graph, too
    num_prompt_tokens = 64 if chunks else 0
    decodes_held = 16 if chunks else 8
    assert _graphs().find(plan) == GraphShape(decodes_held, num_prompt_tokens, is_ruled=True)


def test_ruled_steps_have_room_for_as_many_prompt_tokens_as_others() -> None:
    graphs = _graphs()
    shape = graphs.find(make_plan([3], [_chunk(40, 200)]))
    assert shape == GraphShape(16, 256, is_ruled=True)
    deterministic = graphs.find(make_plan([3, 2]))
    assert deterministic == GraphShape(8, is_deterministic=True, is_ruled=True)


def test_a_ruled_replay_returns_all_hidden_states_and_chooses_nothing() -> None:
    graphs = _graphs()
    table = graphs._table
    table.last_tokens[3] = 70
    plan = make_plan([3], [Chunk(20, 0, (1, 2), samples=False), Chunk(21, 0, (3, 4))])
    shape = graphs.find(plan)
    assert shape is not None
    fed = graphs.replay_ruled(shape, plan, lay_out(plan, table, BLOCK_SIZE))
    assert fed.tokens[fed.places].tolist() == [70, 1, 2, 3, 4]
    assert fed.hidden[fed.places, 0].tolist() == [70, 1, 2, 3, 4]
    assert table.last_tokens[3] == 70


def test_a_graph_lists_as_many_alternatives_as_a_row_wants() -> None:
    graphs = _graphs(max_num_rows=32)
    assert graphs.find(make_plan([10, 5])) == GraphShape(8, is_random=True, num_logprobs=8)
    assert graphs.find(make_plan([10, 4])) == GraphShape(8, is_random=True, num_logprobs=16)
    found = graphs.find(make_plan([4], [_chunk(10, 5)]))
    assert found == GraphShape(32, 64, is_random=True, num_logprobs=16)
    # plain rows do not pay for alternatives
    assert graphs.find(make_plan([10], [_chunk(11, 5)])) == GraphShape(8, 64, is_random=True)


def test_a_replay_returns_decodes_apart_from_chunks_and_their_siblings() -> None:
    """The tokens sampled last are fed, those of the prompt follow; each gets the next number."""
    graphs = _graphs()
    table = graphs._table
    table.last_tokens[10] = 70
    chunks = [Chunk(20, 0, (1, 2), samples=False), Chunk(21, 0, (3, 4))]
    plan = make_plan([10], chunks, [(22, 21)])
    shape = graphs.find(plan)
    assert shape is not None
    decodes, others = graphs.replay(shape, plan, lay_out(plan, table, BLOCK_SIZE))
    assert decodes.tokens.tolist() == [71]
    assert others.tokens.tolist() == [5, 5]
    assert table.last_tokens[[10, 21, 22]].tolist() == [71, 5, 5]
