"""Vectors over HTTP are those of transformers, and what cannot have any is refused."""

import base64
from typing import Any

import openai
import pytest
import torch
import transformers
from torch import Tensor

from app.limits import MAX_EMBEDDED_NUMBERS
from app.protocol.api_settings import EmbeddingSettings
from engine.types import FinishReason
from tests.app.api.server import MODEL, encode, in_process, make_app
from tests.app.text.tokenizers import chatml_tokenizer
from tests.engine.model.tiny import TinyModel, save_tiny
from tests.fakes.inline_engine import InlineEngineClient
from tests.fakes.scripted_engine import FakeEngineClient, Script

_SIZE = 64
_IDS = [list(range(start, start + length)) for start, length in ((3, 45), (60, 16), (90, 1))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """With a row for each token of the tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    return save_tiny("mha", folder, vocab_size=len(chatml_tokenizer().vocabulary))


@pytest.fixture(scope="module")
def engine(model: TinyModel) -> InlineEngineClient:
    return InlineEngineClient(model.config(block_size=4, max_num_batched_tokens=16))


def _states(model: TinyModel, ids: list[int]) -> Tensor:
    peer = transformers.AutoModel.from_pretrained(model.folder, dtype=torch.float32).eval()
    with torch.no_grad():
        states: Tensor = peer(torch.tensor([ids])).last_hidden_state[0]
    return states


async def _ask(
    engine: Any, fields: dict[str, Any], path: str = "/v1/embeddings", **embedding: Any
) -> Any:
    settings = EmbeddingSettings(**{"size": _SIZE, **embedding})
    async with in_process(make_app(engine, embedding=settings)) as http:
        return await http.post(path, json=fields)


async def test_vectors_of_a_batch_are_the_last_states(
    engine: InlineEngineClient, model: TinyModel
) -> None:
    answer = (await _ask(engine, {"model": MODEL, "input": _IDS, "user": "u"})).json()
    assert (answer["object"], answer["model"]) == ("list", MODEL)
    for index, (item, ids) in enumerate(zip(answer["data"], _IDS, strict=True)):
        assert (item["object"], item["index"]) == ("embedding", index)
        vector = torch.tensor(item["embedding"])
        torch.testing.assert_close(vector, _states(model, ids)[-1], atol=1e-4, rtol=1e-4)
    usage = answer["usage"]
    assert usage["prompt_tokens"] == usage["total_tokens"] == 62


async def test_a_mean_is_asked_for_or_is_the_models_own(
    engine: InlineEngineClient, model: TinyModel
) -> None:
    fields = {"input": _IDS[0]}
    asked = (await _ask(engine, fields | {"pooling": "mean"})).json()
    own = (await _ask(engine, fields, pooling="mean")).json()
    expected = _states(model, _IDS[0]).mean(0)
    for answer in (asked, own):
        vector = torch.tensor(answer["data"][0]["embedding"])
        torch.testing.assert_close(vector, expected, atol=1e-4, rtol=1e-4)


async def test_a_text_has_the_vector_of_its_tokens(engine: InlineEngineClient) -> None:
    of_text = (await _ask(engine, {"input": "The quick"})).json()
    of_ids = (await _ask(engine, {"input": encode("The quick")})).json()
    cut = {
        "input": encode("The quick") + [5] * 9,
        "truncate_prompt_tokens": len(encode("The quick")),
    }
    of_cut = (await _ask(engine, cut)).json()
    vectors = [torch.tensor(a["data"][0]["embedding"]) for a in (of_text, of_ids, of_cut)]
    torch.testing.assert_close(vectors[0], vectors[1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(vectors[0], vectors[2], atol=1e-5, rtol=1e-5)


async def test_leading_dimensions_are_normed_again(engine: InlineEngineClient) -> None:
    whole = (await _ask(engine, {"input": _IDS[1]})).json()["data"][0]["embedding"]
    fields = {"input": _IDS[1], "dimensions": 16}
    cut = (await _ask(engine, fields)).json()["data"][0]["embedding"]
    normed = (await _ask(engine, fields, is_normalized=True)).json()["data"][0]["embedding"]
    assert cut == pytest.approx(whole[:16], abs=1e-5)
    unit = torch.nn.functional.normalize(torch.tensor(whole[:16]), dim=0)
    torch.testing.assert_close(torch.tensor(normed), unit, atol=1e-5, rtol=1e-5)


async def test_openais_client_reads_them(engine: InlineEngineClient) -> None:
    """It asks for base64 by itself."""
    app = make_app(engine, embedding=EmbeddingSettings(size=_SIZE))
    http: Any = in_process(app)
    async with openai.AsyncOpenAI(
        api_key="key", base_url="http://test/v1", http_client=http, max_retries=0
    ) as client:
        found = await client.embeddings.create(model=MODEL, input=_IDS)
        floats = await client.embeddings.create(model=MODEL, input=_IDS, encoding_format="float")
    for packed, listed in zip(found.data, floats.data, strict=True):
        assert packed.embedding == pytest.approx(listed.embedding, abs=1e-6)
    raw = (await _ask(engine, {"input": _IDS[0], "encoding_format": "base64"})).json()
    assert len(base64.b64decode(raw["data"][0]["embedding"])) == 4 * _SIZE


async def test_scores_are_cosines_of_an_embedding_model(
    engine: InlineEngineClient, model: TinyModel
) -> None:
    texts = ["The quick", "brown fox", "The slow"]
    fields = {"text_1": texts[0], "text_2": texts}
    answer = (await _ask(engine, fields, "/v1/score", is_own=True)).json()
    states = torch.stack([_states(model, encode(text))[-1] for text in texts])
    expected = torch.nn.functional.cosine_similarity(states[:1], states)
    scores = torch.tensor([item["score"] for item in answer["data"]])
    torch.testing.assert_close(scores, expected, atol=1e-4, rtol=1e-4)
    pairs = {"text_1": texts[:2], "text_2": texts[1:]}
    paired = (await _ask(engine, pairs, "/v1/score", is_own=True)).json()
    torch.testing.assert_close(
        torch.tensor([item["score"] for item in paired["data"]]),
        torch.nn.functional.cosine_similarity(states[:2], states[1:]),
        atol=1e-4,
        rtol=1e-4,
    )


@pytest.mark.parametrize(
    ("path", "fields", "embedding", "param", "words"),
    [
        ("/v1/score", {"text_1": "a", "text_2": "b"}, {}, "model", "no embedding model"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c"]}, {}, "text_1", "as many as text_2"),
        ("/v1/embeddings", {"input": ""}, {}, "input", ""),
        ("/v1/embeddings", {"input": []}, {}, "input", "at least 1"),
        ("/v1/embeddings", {"input": [[]]}, {}, "input[0]", ""),
        ("/v1/embeddings", {"input": [1 << 30]}, {}, "input[0]", "no token"),
        ("/v1/embeddings", {"input": [1] * 512}, {}, "input", "context is 512"),
        ("/v1/embeddings", {"input": "a", "dimensions": 65}, {}, "dimensions", "64"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "hex"}, {}, "encoding_format", ""),
        ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 0}, {},
         "truncate_prompt_tokens", "at least 1"),
        ("/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 512}, {},
         "truncate_prompt_tokens", "above 511"),
        ("/v1/embeddings", {"input": ["a", "b"]}, {"size": MAX_EMBEDDED_NUMBERS}, "input",
         "at most 1 texts"),
        ("/v1/completions", {"prompt": "a"}, {"is_own": True}, "model", "/v1/embeddings"),
    ],
)  # fmt: skip
async def test_what_cannot_be_answered_is_refused(
    path: str, fields: dict[str, Any], embedding: dict[str, Any], param: str, words: str
) -> None:
    engine = FakeEngineClient([Script([5])])
    answer = await _ask(engine, fields, path, **embedding)
    error = answer.json()["error"]
    assert answer.status_code in (400, 404), error
    assert error["param"] == param
    assert words in error["message"]
    assert engine.prompts == []


async def test_an_engine_that_gives_up_is_an_error_and_nothing_stays_in_it() -> None:
    engine = FakeEngineClient([Script([5]), Script([5], finish=FinishReason.ABORT)])
    answer = await _ask(engine, {"input": _IDS})
    assert answer.status_code >= 500
    assert sorted(engine.aborted) == list(range(len(engine.prompts)))
