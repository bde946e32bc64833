import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from app.models.conversion.gguf_tokenizer import _CUTS, _QWEN2, make_tokenizer, tokenizer_config
from app.text.tokenizer import Tokenizer
from engine.errors import ConfigError
from tests.app.models.conversion.gguf_files import MERGES, SPECIAL, tokens
from tests.app.models.conversion.test_gguf_config import FakeModel
from tests.app.text.tokenizers import trained_sentencepiece

TEXTS = ["hello the dog", "two  dogs\n\n\nshow", "é 日本 🎉\t", "the<end>dog", "12 the  "]


def byte_level(pre: str, **more: Any) -> Any:
    fields = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens(), "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.token_type": [3 if token in SPECIAL else 1 for token in tokens()],
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, **more,
    }  # fmt: skip
    return FakeModel("qwen2", fields)


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["he", "Ġthe", "1234", "'", "S"]),
        ("smollm", ["he", "Ġthe", "1", "2", "3", "4", "'", "S"]),
        ("qwen2", ["he", "Ġthe", "1", "2", "3", "4", "'S"]),
        ("llama-bpe", ["he", "Ġthe", "123", "4", "'S"]),
        ("tekken", ["he", "Ġthe", "1", "2", "3", "4", "'S"]),
        ("gpt-4o", ["he", "Ġthe", "123", "4", "'S"]),
    ],
)
def test_text_is_cut_as_the_file_says(pre: str, expected: list[str]) -> None:
    cut = make_tokenizer(byte_level(pre)).pre_tokenizer
    assert isinstance(cut, pre_tokenizers.PreTokenizer)
    assert [part for part, _ in cut.pre_tokenize_str("he the1234'S")] == expected


def test_the_pattern_of_qwen_is_the_published_one() -> None:
    assert _QWEN2 == PRETOKENIZE_REGEX == _CUTS["qwen2"]


def test_an_unknown_cut_or_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="cuts text as 'new'; known are gpt-2, olmo"):
        make_tokenizer(byte_level("new"))
    with pytest.raises(ConfigError, match="tokenizer of kind 'bert'"):
        make_tokenizer(byte_level("qwen2", **{"tokenizer.ggml.model": "bert"}))


def test_a_beginning_is_added_where_the_file_or_its_kind_says() -> None:
    add = "tokenizer.ggml.add_bos_token"
    for pre, more, has_bos in [
        ("qwen2", {}, False), ("qwen2", {add: True}, True), ("llama-bpe", {}, True),
        ("llama-bpe", {add: False}, False),
    ]:  # fmt: skip
        ids = make_tokenizer(byte_level(pre, **more)).encode("he").ids
        assert (ids[0] == 1) == has_bos
        assert len(ids) == 1 + has_bos


def sentencepiece_model() -> tuple[Any, sentencepiece.SentencePieceProcessor]:
    trained = trained_sentencepiece(310, user_defined_symbols=["<end>", "\n\n"])
    theirs = sentencepiece.SentencePieceProcessor(model_proto=trained)
    ids = range(theirs.get_piece_size())
    kinds = [
        6 if theirs.is_byte(i)
        else 2 if theirs.is_unknown(i)
        else 3 if theirs.is_control(i)
        else 4 if theirs.id_to_piece(i) in ("<end>", "\n\n")
        else 1
        for i in ids
    ]  # fmt: skip
    fields = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [theirs.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [theirs.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return FakeModel("llama", fields), theirs


MODEL, THEIRS = sentencepiece_model()
OURS = make_tokenizer(MODEL)


@given(text=st.text(alphabet="helo thdg tw\n<end>é🎉▁1", max_size=20) | st.sampled_from(TEXTS))
@settings(max_examples=200)
def test_pieces_are_those_of_sentencepiece(text: str) -> None:
    if not any(symbol in text for symbol in ("<end>", "\n\n", "▁")):
        expected = THEIRS.encode(text)
        assert OURS.encode(text, add_special_tokens=False).ids == expected
        assert OURS.decode(expected) == text


def test_what_users_defined_is_one_token(tmp_path: Path) -> None:
    assert "<end>" in OURS.encode("the<end>dog").tokens
    assert OURS.encode("\n\n").tokens[-1] == "\n\n"
    assert OURS.encode("hello").ids[0] == 1


def test_the_folder_is_a_tokenizer_with_names_and_templates(tmp_path: Path) -> None:
    MODEL.chat_templates = lambda: iter([("default", "d"), ("tool_use", "t")])
    OURS.save(str(tmp_path / "tokenizer.json"))
    config = tokenizer_config(MODEL)
    assert config["chat_template"][1] == {"name": "tool_use", "template": "t"}
    assert (config["bos_token"], config["eos_token"], config["unk_token"]) == (
        "<s>",
        "</s>",
        "<unk>",
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.end_ids == (2,)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids[0] == 1
        spaced = text.replace("\n\n\n", "\n\n \n").replace("<end>", "<end> ")
        assert tokenizer.decode(ids[1:]) == spaced
