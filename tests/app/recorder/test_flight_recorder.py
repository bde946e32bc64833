"""The trace of an application over a scripted and over a real engine."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from app.recorder.flight_recorder import HASH_BLOCK, FlightRecorder, RecorderOptions, prefix_hashes
from engine.config import EngineConfig
from engine.errors import EngineError, Overloaded
from engine.model_config import read_model_config
from engine.runtime.protocol import EngineClient
from engine.types import SamplingParams, int32
from load_tests.traffic.schedule import Extent
from load_tests.traffic.trace import read_traces
from tests.app.api.answers import post
from tests.app.api.server import COMPLETIONS, completion_body, encode, in_process, make_app
from tests.app.text.tokenizers import chatml_tokenizer
from tests.fakes.inline_engine import InlineEngineClient
from tests.fakes.scripted_engine import FakeEngineClient, Hypothesis, Script

KEY = b"k" * 32


class Recorded:
    """A recorder before a client, and what it has written once it is closed."""

    def __init__(self, client: EngineClient, folder: Path) -> None:
        options = RecorderOptions(folder=folder, max_bytes=1 << 20, hash_key=KEY)
        self.client = FlightRecorder(client, options)
        self._folder = folder

    def lines(self) -> list[dict[str, Any]]:
        self.client.close()
        [path] = self._folder.iterdir()
        return [json.loads(line) for line in path.read_text().splitlines()]


async def status(recorded: Recorded, **fields: Any) -> int:
    async with in_process(make_app(recorded.client)) as http:
        return (await http.post(COMPLETIONS, json=completion_body(**fields))).status_code


async def test_a_line_tells_lengths_and_outcome_and_no_tokens(tmp_path: Path) -> None:
    prompt = list(range(3, 3 + 2 * HASH_BLOCK + 1))
    recorded = Recorded(FakeEngineClient([Script(tokens=[5, 6, 7], num_cached=16)]), tmp_path)
    assert await status(recorded, prompt=prompt, max_tokens=8) == 200
    [line] = recorded.lines()
    assert (line["input_length"], line["output_length"]) == (len(prompt), 3)
    assert (line["output_lengths"], line["finish_reasons"]) == ([3], ["stop"])
    assert (line["cached_tokens"], line["preemptions"], line["max_tokens"]) == (16, 0, 8)
    assert line["hash_block_size"] == HASH_BLOCK
    assert len(line["hash_ids"]) == 2
    assert 0 <= line["ttft_s"] <= line["e2e_s"]
    # nothing else: neither tokens nor texts
    assert line.keys() == {
        "timestamp", "input_length", "output_length", "hash_ids", "hash_block_size",
        "output_lengths", "finish_reasons", "beam_width", "max_tokens", "ttft_s", "e2e_s",
        "cached_tokens", "preemptions",
    }  # fmt: skip


async def test_choices_that_end_for_different_reasons(tmp_path: Path) -> None:
    said = {0: [5, 6], 1: [5, 6, 7, 8, 9, 10]}
    recorded = Recorded(FakeEngineClient([Script(draw=lambda seed: said[seed])]), tmp_path)
    await status(recorded, n=2, seed=0, max_tokens=4)
    [line] = recorded.lines()
    assert (line["output_length"], line["output_lengths"]) == (4, [2, 4])
    assert line["finish_reasons"] == ["stop", "length"]


async def test_a_stop_string_ends_by_stop(tmp_path: Path) -> None:
    tokens = encode("one two three four")
    recorded = Recorded(FakeEngineClient([Script(tokens=tokens)]), tmp_path)
    await status(recorded, stop=["two"], max_tokens=len(tokens) + 1)
    [line] = recorded.lines()
    assert line["finish_reasons"] == ["stop"]
    assert 0 < line["output_length"] < len(tokens)


async def test_a_beam_search_is_one_line(tmp_path: Path) -> None:
    found = [Hypothesis([5, 6], [-0.1, -0.1]), Hypothesis([7], [-0.5])]
    recorded = Recorded(FakeEngineClient([Script(hypotheses=found)]), tmp_path)
    await status(recorded, n=2, use_beam_search=True, max_tokens=4, temperature=0)
    [line] = recorded.lines()
    assert (line["beam_width"], line["output_lengths"]) == (2, [2, 1])


@pytest.mark.parametrize(
    ("client", "code", "reason"),
    [
        (FakeEngineClient([], refusal=Overloaded("full", retry_after_s=1)), 429, "refused"),
        (FakeEngineClient([], refusal=EngineError("gone")), 503, "error"),
        (FakeEngineClient([Script(tokens=[5], error=EngineError("dead"))]), 503, "error"),
    ],
)
async def test_what_fails_is_recorded_too(
    client: FakeEngineClient, code: int, reason: str, tmp_path: Path
) -> None:
    recorded = Recorded(client, tmp_path)
    assert await status(recorded) == code
    [line] = recorded.lines()
    assert (line["finish_reasons"], line["output_length"]) == ([reason], 0)
    assert line["ttft_s"] is None


async def test_who_goes_away_is_an_abort(tmp_path: Path) -> None:
    fake = FakeEngineClient([Script(tokens=[5, 6, 7], pause_at=2)])
    recorded = Recorded(fake, tmp_path)
    stream = await recorded.client.submit(int32([3]), SamplingParams(max_tokens=9))
    deltas = aiter(stream)
    await anext(deltas)
    await anext(deltas)
    waiting = asyncio.ensure_future(anext(deltas))
    await fake.paused.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await stream.abort()
    assert fake.aborted == [0]
    [line] = recorded.lines()
    assert (line["finish_reasons"], line["output_length"]) == (["abort"], 2)


def test_equal_hashes_mean_equal_prefixes_of_one_tenant() -> None:
    first, second = list(range(40)), [*range(20), 99, *range(21, 40)]
    hashes = prefix_hashes(int32(first), b"t", KEY)
    assert len(set(hashes)) == 40 // HASH_BLOCK
    assert max(hashes) < 1 << 48
    assert prefix_hashes(int32(first), b"t", KEY) == hashes
    # the second block differs, and with it all that follow
    assert prefix_hashes(int32(second), b"t", KEY)[0] == hashes[0]
    assert prefix_hashes(int32(second), b"t", KEY)[1] != hashes[1]
    assert not set(hashes) & set(prefix_hashes(int32(first), b"u", KEY))
    assert not set(hashes) & set(prefix_hashes(int32(first), b"t", b"other"))
    assert prefix_hashes(int32([1] * (HASH_BLOCK - 1)), b"t", KEY) == []


@pytest.fixture(scope="module")
def engine_config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(chatml_tokenizer().vocabulary),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=256,
        )
    )
    model.save_pretrained(folder)
    return EngineConfig.from_options(
        model_path=str(folder),
        model=read_model_config(folder),
        dtype="float32",
        device="cpu",
        num_blocks=10,
        watermark=0.0,
        growth_blocks=0.0,
        max_num_seqs=4,
        max_num_batched_tokens=256,
        max_model_len=128,
    )


async def test_a_real_engine_tells_of_preemptions_and_of_its_cache(
    engine_config: EngineConfig, tmp_path: Path
) -> None:
    recorded = Recorded(InlineEngineClient(engine_config), tmp_path)
    fields = {"max_tokens": 60, "ignore_eos": True, "temperature": 0}
    # two sequences of 92 positions in a pool for 160
    pair = completion_body(prompt=[[5] * 32, [6] * 32], **fields)
    await post(recorded.client, COMPLETIONS, pair)
    await post(recorded.client, COMPLETIONS, completion_body(prompt=[6] * 32 + [7], max_tokens=1))
    lines = recorded.lines()
    assert [line["output_length"] for line in lines] == [60, 60, 1]
    assert sum(line["preemptions"] for line in lines[:2]) > 0
    again = lines[2]
    assert again["cached_tokens"] == 32
    assert again["hash_ids"][:2] in [line["hash_ids"] for line in lines[:2]]


async def test_a_trace_can_be_replayed(tmp_path: Path) -> None:
    script = Script(draw=lambda seed: [5, 6, 7, 8][: 2 + seed])
    recorded = Recorded(FakeEngineClient([script]), tmp_path)
    prompt = list(range(3, 3 + HASH_BLOCK))
    await status(recorded, prompt=[prompt, [*prompt, 9]], n=2, seed=0, max_tokens=4)
    await status(recorded, prompt=prompt, seed=1, max_tokens=4)
    recorded.client.close()
    trace = read_traces([tmp_path], Extent())
    assert [(r.input_len, r.output_len, r.n) for r in trace.requests] == [
        (HASH_BLOCK, 3, 2),
        (HASH_BLOCK + 1, 3, 2),
        (HASH_BLOCK, 3, 1),
    ]
    assert len({request.hash_ids for request in trace.requests}) == 1
    assert trace.recorded().keys() == {"ttft_s", "tpot_s", "e2e_s"}
