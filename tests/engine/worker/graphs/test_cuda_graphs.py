"""Decode steps that are replayed, on a CPU whose recordings are the work itself."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.core.preemption import Preemption
from engine.model.loader import load_model
from engine.model.parallel import TensorParallel
from engine.types import SamplingParams
from engine.worker.graphs.graph_batch import MAX_CHUNKS, decode_sizes, mixed_shapes
from engine.worker.kv_pool import KVPool
from engine.worker.worker import Worker
from kernels.runtime import HostRuntime, T
from kernels.select import select_backend
from tests.engine.model.tiny import TinyModel
from tests.engine.whole.engine_run import RECOMPUTE, SWAP, SWAP_BYTES, Run, run, tokens_of
from tests.engine.worker.plans import Driver

_GREEDY = SamplingParams(max_tokens=24, temperature=0.0)
_DRAWING = SamplingParams(max_tokens=17, temperature=1.2, seed=9)
_PROMPTS = [list(range(start, start + length)) for start, length in ((3, 5), (60, 16), (90, 23))]


class _Replayer(HostRuntime):
    """Counts what is recorded and replayed."""

    def __init__(self) -> None:
        super().__init__(captures=True)
        self.num_captures = 0
        self.num_replays = 0

    def capture(self, work: Callable[[], T]) -> Callable[[], T]:
        self.num_captures += 1
        # a batch of padding must be harmless
        work()

        def replay() -> T:
            self.num_replays += 1
            return work()

        return replay


def _loader(runtime: HostRuntime) -> Callable[[EngineConfig], Worker]:
    """Loads workers with a runtime of one's own."""

    def load(config: EngineConfig) -> Worker:
        backend = select_backend("cpu", torch.float32, compiled=config.compiled_kernels)
        model = load_model(config, backend, TensorParallel())
        pool = KVPool(config, TensorParallel(), backend, runtime, 0)
        return Worker(config, runtime, backend, TensorParallel(), model, pool)

    return load


def _graphed(
    tiny: TinyModel, samplings: list[SamplingParams], **settings: Any
) -> tuple[Run, _Replayer]:
    runtime = _Replayer()
    return run(tiny, _PROMPTS, samplings, load=_loader(runtime), **settings), runtime


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
    runtime = _Replayer()
    engine = Run(tiny, load=_loader(runtime), max_num_seqs=32)
    num_common = runtime.num_captures
    for index, prompt in enumerate(_PROMPTS):
        engine.add(index, prompt, beams)
        for _ in range(3):
            engine.step()
    engine.drain()
    assert runtime.num_captures == num_common
    assert runtime.num_replays == len([plan for plan in engine.plans if plan.num_tokens])
    assert tokens_of(engine) == tokens_of(run(tiny, _PROMPTS, beams, max_num_seqs=32))


def test_log_probabilities_of_prompts_are_not_replayed(tiny: TinyModel) -> None:
    samplings = [_GREEDY, replace(_GREEDY, num_logprobs=2, prompt_logprobs=2), _GREEDY]
    graphed, runtime = _graphed(tiny, samplings)
    launched = run(tiny, _PROMPTS, samplings)
    assert tokens_of(graphed) == tokens_of(launched)
    assert runtime.num_replays < len(graphed.plans)


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
    runtime = _Replayer()
    engine = Run(tiny, load=_loader(runtime), max_num_seqs=16)
    num_common = runtime.num_captures
    for index, width in enumerate((2, 4, 8)):
        engine.add(index, _PROMPTS[0], replace(_GREEDY, beam_width=width, n=width))
        engine.drain()
    assert runtime.num_captures == num_common
    engine.add(3, _PROMPTS[0], replace(_GREEDY, beam_width=10, n=1))
    engine.drain()
    assert runtime.num_captures == num_common + 1


@pytest.mark.parametrize("special", [{"presence_penalty": 0.5}, {"min_tokens": 3}])
def test_a_row_whose_rules_need_its_tokens_is_not_replayed(
    tiny: TinyModel, special: dict[str, Any]
) -> None:
    samplings = [_GREEDY, replace(_GREEDY, **special), replace(_GREEDY, max_tokens=4)]
    graphed, runtime = _graphed(tiny, samplings)
    assert tokens_of(graphed) == tokens_of(run(tiny, _PROMPTS, samplings))
    assert runtime.num_replays < len(graphed.plans) / 4


def test_a_chunk_that_goes_on_may_come_before_one_that_ends(tiny: TinyModel) -> None:
    runtime = _Replayer()
    driver = Driver(_loader(runtime)(tiny.config(block_size=4)))
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
    runtime = _Replayer()
    engine = Run(tiny, load=_loader(runtime))
    num_common = runtime.num_captures
    for index, sampling in enumerate((_DRAWING, replace(_DRAWING, top_p=0.5, top_k=40))):
        engine.add(index, _PROMPTS[index], sampling)
        engine.drain()
    assert runtime.num_captures == num_common
    assert runtime.num_replays == len([plan for plan in engine.plans if plan.num_tokens])


def test_buckets_end_with_the_largest_batch() -> None:
    assert decode_sizes(1) == [1]
    assert decode_sizes(5) == [1, 2, 4, 5]
    assert decode_sizes(64) == [1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64]
    assert decode_sizes(256)[-3:] == [224, 240, 256]
    assert decode_sizes(300)[-3:] == [256, 288, 300]


def test_graphs_of_mixed_steps_end_where_launching_is_no_longer_slower() -> None:
    for max_num_rows, most in ((5, 5), (256, 256), (300, 300), (1024, 512)):
        sizes = {shape.num_decodes for shape in mixed_shapes(max_num_rows, 8192)}
        assert max(sizes) == most
