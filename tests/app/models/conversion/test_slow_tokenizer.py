import json
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from app.models.conversion.slow_tokenizer import convert_tokenizer, slow_tokenizer_files
from app.text.tokenizer import Tokenizer
from engine.errors import ConfigError
from tests.app.text.tokenizers import byte_level_backend, trained_sentencepiece

TEXTS = ["", "hello the dog", "  two  spaces", "12 é 日本 🎉\n\ttab"]


def write_byte_level(folder: Path) -> Path:
    """As OPT is published: a vocabulary, merges, and the special tokens by name."""
    folder.mkdir(exist_ok=True)
    model = json.loads(byte_level_backend().to_str())["model"]
    vocabulary = model["vocab"] | {"</s>": len(model["vocab"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))
    names = {"bos_token": "</s>", "eos_token": "</s>", "unk_token": "</s>", "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "GPT2Tokenizer", **names})
    )
    (folder / "config.json").write_text(json.dumps({"model_type": "opt"}))
    return folder


def write_sentencepiece(folder: Path) -> Path:
    (folder / "tokenizer.model").write_bytes(trained_sentencepiece(300))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "LlamaTokenizer",
                "bos_token": "<s>",
                "eos_token": "</s>",
                "add_bos_token": True,
            }
        )
    )
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


def test_which_tokenizers_are_converted(tmp_path: Path) -> None:
    assert slow_tokenizer_files(tmp_path) == ()
    (tmp_path / "vocab.json").touch()
    assert slow_tokenizer_files(tmp_path) == ()
    (tmp_path / "merges.txt").touch()
    assert slow_tokenizer_files(tmp_path) == ("vocab.json", "merges.txt")
    (tmp_path / "tokenizer.json").touch()
    assert slow_tokenizer_files(tmp_path) == ()


def converted(folder: Path) -> Path:
    target = folder / "converted"
    target.mkdir()
    (target / "tokenizer_config.json").write_bytes((folder / "tokenizer_config.json").read_bytes())
    convert_tokenizer(folder, target)
    return target


@pytest.mark.parametrize("write", [write_byte_level, write_sentencepiece])
def test_token_ids_are_those_of_transformers(write: object, tmp_path: Path) -> None:
    assert callable(write)
    folder = write(tmp_path)
    ours, theirs = Tokenizer.load(converted(folder)), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert ours.encode(text).tolist() == ids
        assert ids[:1] == [theirs.bos_token_id]
    assert ours.end_ids == (theirs.eos_token_id,)
    assert ours.decode(ours.encode("hello the dog"), skip_special=True).strip() == "hello the dog"


def test_pieces_are_those_of_sentencepiece(tmp_path: Path) -> None:
    folder = write_sentencepiece(tmp_path)
    ours = Tokenizer.load(converted(folder))
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    for text in TEXTS:
        # transformers add no space in front of a text that begins with one
        text = text.lstrip()
        assert ours.encode(text, add_special_tokens=False).tolist() == theirs.encode(text)


def test_ends_that_only_a_class_names_are_kept(tmp_path: Path) -> None:
    folder = write_byte_level(tmp_path)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    vocabulary = json.loads((folder / "vocab.json").read_text())
    vocabulary["<|endoftext|>"] = vocabulary.get("<|endoftext|>", len(vocabulary))
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    assert Tokenizer.load(converted(folder)).end_ids == (vocabulary["<|endoftext|>"],)


def test_a_tokenizer_that_brings_code_is_refused(tmp_path: Path) -> None:
    folder = write_byte_level(tmp_path)
    own = {"auto_map": {"AutoTokenizer": ["own.Tokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(own))
    (folder / "own.py").write_text("raise SystemExit")
    with pytest.raises(ConfigError, match="code of its own"):
        converted(folder)


def test_what_cannot_be_converted_is_named(tmp_path: Path) -> None:
    folder = write_sentencepiece(tmp_path)
    (folder / "tokenizer.model").write_bytes(b"no model")
    with pytest.raises(ConfigError, match=r"its tokenizer\.model cannot be converted"):
        converted(folder)


def test_the_result_is_a_whole_tokenizer(tmp_path: Path) -> None:
    target = converted(write_byte_level(tmp_path))
    assert Backend.from_file(str(target / "tokenizer.json")).get_vocab_size() > 256
