"""The HTTP layer over a real engine and a tiny model, against transformers."""

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, StoppingCriteria

from engine.config import EngineConfig
from engine.model_config import read_model_config
from tests.app.answers import BODIES, post, summed, text_of
from tests.app.inline_engine import InlineEngineClient
from tests.app.server import (
    CHAT,
    COMPLETIONS,
    MAX_MODEL_LEN,
    chat_body,
    completion_body,
    encode,
    in_process,
    make_app,
)
from tests.text.tokenizers import chatml_tokenizer

EOS = 2
PROMPT = encode("The quick brown fox jumps over the lazy dog. It costs 12.50")


@pytest.fixture(scope="module")
def reference() -> Any:
    config = LlamaConfig(
        vocab_size=len(chatml_tokenizer().vocabulary),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_MODEL_LEN,
        eos_token_id=EOS,
        # far from uniform, so that no two beams tie
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(config)
    return model.eval()


@pytest.fixture(scope="module")
def client(reference: Any, tmp_path_factory: pytest.TempPathFactory) -> InlineEngineClient:
    folder: Path = tmp_path_factory.mktemp("model")
    reference.save_pretrained(folder)
    config = EngineConfig(
        model_path=str(folder),
        model=read_model_config(folder),
        dtype="float32",
        device="cpu",
        num_blocks=512,
        max_num_seqs=16,
        max_model_len=MAX_MODEL_LEN,
        pinned_prefix_share=0.1,
    )
    return InlineEngineClient(config)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_choice_i_alone_has_the_seed_plus_i(path: str, client: InlineEngineClient) -> None:
    body = BODIES[path](n=4, seed=5, max_tokens=12)
    whole = (await post(client, path, body))["choices"]
    streamed = summed(await post(client, path, {**body, "stream": True}))
    assert len({text_of(choice) for choice in whole}) > 1
    for index, choice in enumerate(whole):
        [alone] = (await post(client, path, {**body, "n": 1, "seed": 5 + index}))["choices"]
        assert text_of(alone) == text_of(choice) == streamed[index]["text"]


async def test_best_of_keeps_the_likeliest(client: InlineEngineClient) -> None:
    fields = {"seed": 1, "max_tokens": 8, "ignore_eos": True, "logprobs": 0}
    every = (await post(client, COMPLETIONS, completion_body(n=6, **fields)))["choices"]
    body = completion_body(n=2, best_of=6, **fields)
    best = (await post(client, COMPLETIONS, body))["choices"]
    every.sort(key=lambda choice: -fmean(choice["logprobs"]["token_logprobs"]))
    assert [choice["text"] for choice in best] == [choice["text"] for choice in every[:2]]


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize("length_penalty", [1.0, 0.3, -1.0])
async def test_beams_and_their_scores_are_those_of_transformers(
    early_stopping: Any, length_penalty: float, client: InlineEngineClient, reference: Any
) -> None:
    with torch.inference_mode():
        expected = reference.generate(
            torch.tensor([PROMPT]),
            attention_mask=torch.ones(1, len(PROMPT), dtype=torch.int64),
            num_beams=4,
            num_return_sequences=4,
            max_new_tokens=10,
            do_sample=False,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
        )
    body = completion_body(
        prompt=PROMPT,
        n=4,
        use_beam_search=True,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        max_tokens=10,
        logprobs=0,
        return_token_ids=True,
        include_stop_str_in_output=True,
    )
    for stream in (False, True):
        answer = await post(client, COMPLETIONS, {**body, "stream": stream})
        choices = summed(answer) if stream else answer["choices"]
        for choice, row in zip(choices, expected.sequences, strict=True):
            ids = choice["token_ids"]
            assert ids == row[len(PROMPT) : len(PROMPT) + len(ids)].tolist()
        scores = [_score(choice, length_penalty) for choice in choices]
        assert scores == pytest.approx(expected.sequences_scores.tolist(), abs=1e-4)
        assert scores == sorted(scores, reverse=True)


def _score(choice: dict[str, Any], length_penalty: float) -> float:
    logprobs = choice["logprobs"]["token_logprobs"]
    return float(sum(logprobs) / len(logprobs) ** length_penalty)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 3])
async def test_scores_of_a_prompt_are_those_of_transformers(
    stream: bool, max_tokens: int, client: InlineEngineClient, reference: Any
) -> None:
    fields = {"echo": True, "logprobs": 2, "max_tokens": max_tokens, "stream": stream}
    answer = await post(client, COMPLETIONS, completion_body(prompt=PROMPT, **fields))
    [choice] = summed(answer) if stream else answer["choices"]
    with torch.inference_mode():
        logprobs = reference(torch.tensor([PROMPT])).logits[0].log_softmax(-1)
    expected = [float(logprobs[at, token]) for at, token in enumerate(PROMPT[1:])]
    scores = choice["logprobs"]["token_logprobs"]
    assert scores[0] is None
    assert scores[1 : len(PROMPT)] == pytest.approx(expected, abs=1e-4)
    assert len(scores) == len(PROMPT) + max_tokens


async def test_a_prompt_that_fills_the_context_can_be_scored(client: InlineEngineClient) -> None:
    prompt = (PROMPT * MAX_MODEL_LEN)[:MAX_MODEL_LEN]
    body = completion_body(prompt=prompt, echo=True, logprobs=0, max_tokens=0)
    [choice] = (await post(client, COMPLETIONS, body))["choices"]
    assert len(choice["logprobs"]["tokens"]) == MAX_MODEL_LEN
    answer = await post(client, CHAT, chat_body(prompt_logprobs=3, max_tokens=2))
    assert all(len(entry) in (3, 4) for entry in answer["prompt_logprobs"][1:])


async def test_a_pinned_prefix_is_found_and_changes_no_answer(client: InlineEngineClient) -> None:
    size, prefix = 16, (PROMPT * 50)[:50]
    async with in_process(make_app(client)) as http:
        pinned = (await http.post("/v1/prefixes", json={"name": "a", "prompt": prefix})).json()
        assert (pinned["tokens"], pinned["blocks"], pinned["status"]) == (48, 3, "pinned")
        assert (await http.get("/v1/prefixes")).json()["data"] == [pinned]
    for prompt in (prefix[:47], prefix[:48], prefix[:49]):
        fields = {"prompt": prompt, "max_tokens": 6, "temperature": 0}
        found = await post(client, COMPLETIONS, completion_body(**fields))
        # a prompt that is scored is computed without the cache
        alone = await post(client, COMPLETIONS, completion_body(**fields, prompt_logprobs=0))
        assert found["choices"][0]["text"] == alone["choices"][0]["text"]
        cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in (found, alone)]
        assert cached == [(len(prompt) - 1) // size * size, 0]


async def test_a_prefix_that_fills_no_block_is_refused(client: InlineEngineClient) -> None:
    async with in_process(make_app(client)) as http:
        answer = await http.post("/v1/prefixes", json={"name": "b", "prompt": [5] * 15})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "name"
    assert "whole blocks of 16" in answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_alternatives_of_beams_are_those_of_a_forward_pass(
    stream: bool, client: InlineEngineClient, reference: Any
) -> None:
    fields = {"n": 3, "use_beam_search": True, "max_tokens": 6, "ignore_eos": True}
    fields |= {"return_token_ids": True, "return_tokens_as_token_ids": True, "stream": stream}
    body = completion_body(prompt=PROMPT, logprobs=3, **fields)
    answer = await post(client, COMPLETIONS, body)
    for choice in summed(answer) if stream else answer["choices"]:
        ids, found = choice["token_ids"], choice["logprobs"]
        for at, expected in enumerate(_forward(reference, PROMPT, ids)):
            assert found["token_logprobs"][at] == pytest.approx(float(expected[ids[at]]), abs=1e-4)
            top = {f"token_id:{token}": float(expected[token]) for token in expected.topk(3)[1]}
            top.setdefault(f"token_id:{ids[at]}", float(expected[ids[at]]))
            assert found["top_logprobs"][at] == pytest.approx(top, abs=1e-4)
    answer = await post(client, CHAT, chat_body(logprobs=True, top_logprobs=3, **fields))
    prompt = _prompt_ids(answer) if stream else answer["prompt_token_ids"]
    for choice in summed(answer) if stream else answer["choices"]:
        ids, content = choice["token_ids"], choice["logprobs"]["content"]
        for at, expected in enumerate(_forward(reference, prompt, ids)):
            assert content[at]["logprob"] == pytest.approx(float(expected[ids[at]]), abs=1e-4)
            values = [entry["logprob"] for entry in content[at]["top_logprobs"]]
            assert values == pytest.approx(expected.topk(3)[0].tolist(), abs=1e-4)


def _prompt_ids(chunks: list[dict[str, Any]]) -> list[int]:
    [ids] = [chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk]
    return list(ids)


@torch.inference_mode()
def _forward(reference: Any, prompt: list[int], ids: list[int]) -> Any:
    """Raw log-probabilities [len(ids), vocab_size] of a continuation."""
    logits = reference(torch.tensor([prompt + ids[:-1]])).logits
    return logits[0, len(prompt) - 1 :].log_softmax(-1)


class _StopString(StoppingCriteria):
    """Ends a beam whose text after the prompt holds a string, as told by the vocabulary."""

    def __init__(self, stop: str) -> None:
        self._stop = stop
        self._pieces = chatml_tokenizer().vocabulary.pieces

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        texts = (b"".join(self._pieces[i] for i in row[len(PROMPT) :]) for row in input_ids)
        return torch.tensor([self._stop.encode() in text for text in texts])


@pytest.mark.parametrize("early_stopping", [True, False, "never"])
@pytest.mark.parametrize("at", [0.1, 0.3])
async def test_a_beam_ends_at_a_stop_string_as_in_transformers(
    at: float, early_stopping: Any, client: InlineEngineClient, reference: Any
) -> None:
    fields = {"n": 4, "use_beam_search": True, "max_tokens": 12, "early_stopping": early_stopping}
    fields |= {"prompt": PROMPT, "ignore_eos": True, "logprobs": 0, "return_token_ids": True}
    [free, *_] = (await post(client, COMPLETIONS, completion_body(**fields)))["choices"]
    text = free["text"]
    pairs = (text[i : i + 2] for i in range(int(len(text) * at), len(text) - 1))
    stop = next(pair for pair in pairs if pair.isascii())
    with torch.inference_mode():
        expected = reference.generate(
            torch.tensor([PROMPT]),
            attention_mask=torch.ones(1, len(PROMPT), dtype=torch.int64),
            num_beams=4,
            num_return_sequences=4,
            max_new_tokens=12,
            do_sample=False,
            early_stopping=early_stopping,
            eos_token_id=None,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
            stopping_criteria=[_StopString(stop)],
        )
    for stream in (False, True):
        body = completion_body(stop=stop, stream=stream, **fields)
        answer = await post(client, COMPLETIONS, body)
        choices = summed(answer) if stream else answer["choices"]
        assert stop in {choice["stop_reason"] for choice in choices}
        for choice, row in zip(choices, expected.sequences, strict=True):
            ids = choice["token_ids"]
            assert ids == row[len(PROMPT) : len(PROMPT) + len(ids)].tolist()
            is_met = choice["stop_reason"] == stop
            assert choice["finish_reason"] == ("stop" if is_met else "length")
            assert is_met or len(ids) == 12
            assert stop not in choice["text"]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_streamed_search_shows_how_far_it_is(
    path: str, client: InlineEngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.prompt_reader.PROGRESS_PERIOD_S", 0.0)
    fields = {"n": 4, "use_beam_search": True, "max_tokens": 12, "length_penalty": 0.5}
    plain = (await post(client, path, BODIES[path](**fields)))["choices"]
    chunks = await post(client, path, BODIES[path](stream=True, **fields))
    progress = [chunk for chunk in chunks if "beams" in chunk]
    # one for each step but the last, before any choice
    assert 3 < len(progress) < 12
    assert chunks[: len(progress)] == progress
    assert all(chunk["choices"] == [] for chunk in progress)
    assert [choice["text"] for choice in summed(chunks)] == [text_of(c) for c in plain]
    for chunk in progress:
        assert [beam["index"] for beam in chunk["beams"]] == [0, 1, 2, 3][: len(chunk["beams"])]
        assert all(set(beam) == BEAM_FIELDS for beam in chunk["beams"])
    last = progress[-1]["beams"]
    for choice in plain:
        assert any(_may_become(beam, choice) for beam in last)


BEAM_FIELDS = {"index", "text", "cumulative_logprob", "finish_reason"}


def _may_become(beam: dict[str, Any], choice: dict[str, Any]) -> bool:
    if beam["finish_reason"] is not None:
        return bool(beam["text"] == text_of(choice))
    return text_of(choice).startswith(beam["text"].rstrip("\ufffd"))


async def test_progress_is_not_told_more_often_than_it_can_be_read(
    client: InlineEngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.prompt_reader.PROGRESS_PERIOD_S", 1e6)
    body = completion_body(n=2, use_beam_search=True, max_tokens=12, stream=True)
    body["stream_options"] = {"include_usage": True}
    first, *rest = await post(client, COMPLETIONS, body)
    assert [beam["index"] for beam in first["beams"]] == [0, 1]
    assert first["usage"] is None
    assert not any("beams" in chunk for chunk in rest)
    assert len(summed(rest)) == 2
