"""The peer with a vLLM that only counts: which of its engines is asked for what."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from torch.nn import Linear

from load_tests.bench.peers.measures import Decode, Online
from load_tests.bench.peers.system import take
from load_tests.bench.peers.vllm_peer import VllmSystem
from load_tests.work import Work
from tests.load_tests.bench.peers.settings import MEASURES, knobs

CONFIG = SimpleNamespace(
    cache_config=SimpleNamespace(num_gpu_blocks=256),
    scheduler_config=SimpleNamespace(max_num_seqs=8, max_num_batched_tokens=64),
)
MODULES = (
    "vllm", "vllm.sampling_params", "vllm.engine", "vllm.engine.arg_utils", "vllm.v1",
    "vllm.v1.engine", "vllm.v1.engine.async_llm",
)  # fmt: skip


class Engine:
    """All engines that were made, with their arguments, are in `made`."""

    made: list["Engine"]
    vllm_config = CONFIG

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        self.schemas: list[str] = []
        self.is_open = True
        self.model = Linear(64, 64)
        self.llm_engine = SimpleNamespace(vllm_config=CONFIG)
        self.made.append(self)

    @classmethod
    def from_engine_args(cls, arguments: Any) -> "Engine":
        return cls(**arguments.__dict__)

    def beam_search(self, prompts: list[dict[str, list[int]]], parameters: Any) -> list[Any]:
        def beam(prompt: dict[str, list[int]]) -> Any:
            return SimpleNamespace(tokens=prompt["prompt_token_ids"] + [0] * parameters.max_tokens)

        width = parameters.beam_width
        return [SimpleNamespace(sequences=[beam(prompt)] * width) for prompt in prompts]

    def apply_model(self, change: Callable[[Any], None]) -> None:
        change(self.model)

    async def collective_rpc(self, method: str, args: tuple[Any, ...]) -> None:
        getattr(self, method)(*args)

    def shutdown(self) -> None:
        self.is_open = False


def is_bound(sampling: Any) -> bool:
    return hasattr(sampling, "structured_outputs")


class Batches(Engine):
    def generate(self, prompts: list[Any], sampling: list[Any], use_tqdm: bool) -> list[Any]:
        assert not use_tqdm
        outputs = [SimpleNamespace(token_ids=[0] * each.max_tokens) for each in sampling]
        assert len(prompts) == len(outputs)
        self.schemas += [each.structured_outputs.json for each in sampling if is_bound(each)]
        return [SimpleNamespace(outputs=[output]) for output in outputs]


class Arrivals(Engine):
    async def generate(self, prompt: Any, sampling: Any, request_id: str) -> AsyncIterator[Any]:
        for _ in range(sampling.max_tokens):
            yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=[0])], num_cached_tokens=3)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    modules: dict[str, Any] = {name: ModuleType(name) for name in MODULES}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    modules["vllm"].__version__ = "0"
    modules["vllm"].LLM = Batches
    modules["vllm"].SamplingParams = SimpleNamespace
    modules["vllm.sampling_params"].BeamSearchParams = SimpleNamespace
    modules["vllm.sampling_params"].StructuredOutputsParams = SimpleNamespace
    kinds = SimpleNamespace(DELTA="delta", FINAL_ONLY="final")
    modules["vllm.sampling_params"].RequestOutputKind = kinds
    modules["vllm.engine.arg_utils"].AsyncEngineArgs = SimpleNamespace
    modules["vllm.v1.engine.async_llm"].AsyncLLM = Arrivals
    engines: list[Engine] = []
    monkeypatch.setattr(Engine, "made", engines, raising=False)
    return engines


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 40}))
    return tmp_path


def test_every_measure_has_the_engine_of_its_kind(made: list[Engine], model: Path) -> None:
    for measure in MEASURES:
        system = VllmSystem(knobs(model), measure)
        assert asyncio.run(take(system, measure))
        system.close()
        assert system.facts["kv_blocks"] == 256
    assert [type(engine) for engine in made] == [*[Batches] * 4, Arrivals]
    # batches end with their process
    assert [engine.is_open for engine in made] == [*[True] * 4, False]
    # Linear draws within 1 / 8
    assert all(0.015 < engine.model.weight.std() < 0.025 for engine in made)
    caches = [engine.arguments["enable_prefix_caching"] for engine in made]
    assert caches == [False, False, False, True, False]
    assert (model / "tokenizer.json").is_file()


def test_prompts_of_today_may_be_found_in_its_cache(made: list[Engine], model: Path) -> None:
    modern = Online(trace="chat", rate_per_s=1.0, duration_s=1.0, seed=0)
    system = VllmSystem(knobs(model), modern)
    (timeline,) = asyncio.run(system.serve([Work(prompt=[11, 12], output_len=4)]))
    assert (len(timeline.token_s), timeline.num_cached) == (4, 3)
    (engine,) = made
    assert engine.arguments["enable_prefix_caching"]
    assert engine.arguments["num_gpu_blocks_override"] == 256


def test_it_shares_the_model_between_as_many_cards(made: list[Engine], model: Path) -> None:
    several = replace(knobs(model), tensor_parallel_size=4)
    VllmSystem(several, MEASURES[0])
    assert made[0].arguments["tensor_parallel_size"] == several.tensor_parallel_size


def test_rows_are_bound_by_schemas_in_turns(made: list[Engine], model: Path) -> None:
    words = {"{": 0, "}": 1, "#": 2}
    (model / "tokenizer.json").write_text(json.dumps({"model": {"vocab": words}}))
    bound = Decode(batch=3, input_len=8, output_len=4, seed=0, num_schemas=2)
    system = VllmSystem(knobs(model), bound)
    asyncio.run(take(system, bound))
    schemas = made[0].schemas
    # three rows in each batch: two that count for nothing, and three turns of three
    assert len(schemas) == 3 * (2 + 3 * 3)
    assert schemas[0] == schemas[2] != schemas[1]
    assert made[0].arguments["structured_outputs_config"]["disable_any_whitespace"]
    # a tokenizer that is there is kept, and its word for the end is named
    assert json.loads((model / "tokenizer.json").read_text())["model"]["vocab"] == words
    assert json.loads((model / "tokenizer_config.json").read_text())["eos_token"] == "#"
