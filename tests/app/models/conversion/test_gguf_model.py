import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from app.models.checkpoint import expected_tensors
from app.models.gguf_model import convert
from engine.errors import ConfigError
from engine.model_config import read_model_config
from tests.app.models.gguf_files import SPECIAL, TEMPLATE, tokens, write_gguf


def converted(folder: Path, *, tied: bool = True) -> tuple[Path, Path]:
    source = folder / "model.gguf"
    write_gguf(source, tied=tied)
    target = folder / "converted"
    target.mkdir()
    convert(source, target, lambda done, total: None)
    return source, target


def by_transformers(source: Path, model: LlamaForCausalLM | None = None) -> dict[str, Any]:
    return load_gguf_checkpoint(  # type: ignore[no-any-return, no-untyped-call]
        str(source), return_tensors=model is not None, model_to_load=model
    )


@pytest.mark.parametrize("tied", [True, False])
def test_weights_equal_those_that_transformers_reads(tied: bool, tmp_path: Path) -> None:
    source, target = converted(tmp_path, tied=tied)
    theirs = by_transformers(source, LlamaForCausalLM(LlamaConfig.from_pretrained(target)))[
        "tensors"
    ]
    ours = load_file(target / "model.safetensors")
    assert ours.keys() == theirs.keys() == expected_tensors(read_model_config(target)).keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, torch.as_tensor(theirs[name]).bfloat16()), name


def test_config_equals_the_one_that_transformers_reads(tmp_path: Path) -> None:
    source, target = converted(tmp_path)
    theirs = by_transformers(source)["config"]
    ours = json.loads((target / "config.json").read_text())
    shared = ours.keys() & theirs.keys() - {"rms_norm_eps", "rope_scaling"}
    assert len(shared) > 8
    assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}
    assert ours["rms_norm_eps"] == 1e-5
    model = read_model_config(target)
    assert (model.tie_embeddings, model.eos_token_ids) == (True, (2,))


def test_every_tensor_advances_the_progress(tmp_path: Path) -> None:
    source = tmp_path / "model.gguf"
    write_gguf(source)
    seen: list[tuple[int, int]] = []
    convert(source, tmp_path, lambda done, total: seen.append((done, total)))
    assert seen == [(number, 20) for number in range(1, 21)]


def test_digits_are_split_and_special_tokens_are_whole(tmp_path: Path) -> None:
    _, target = converted(tmp_path)
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    assert tokenizer.encode("he the12").tokens == ["he", "Ġthe", "1", "2"]
    encoded = tokenizer.encode("<|im_start|>he<|im_end|>")
    assert encoded.tokens == ["<|im_start|>", "he", "<|im_end|>"]
    assert [encoded.ids[0], encoded.ids[2]] == [1, 2]
    assert tokenizer.decode(encoded.ids) == "he"


@pytest.mark.parametrize("text", ["", " ", "a  b\n\n\tc", "1234.5", "é 日本語 🎉", "\x00\x7f"])
def test_text_survives_the_tokenizer(text: str, tmp_path: Path) -> None:
    _, target = converted(tmp_path)
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_transformers_understands_the_tokenizer_folder(tmp_path: Path) -> None:
    _, target = converted(tmp_path)
    theirs = AutoTokenizer.from_pretrained(target)
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (1, 2, 2)
    assert theirs.chat_template == TEMPLATE
    assert len(theirs) == len(tokens())
    assert set(SPECIAL) <= set(theirs.all_special_tokens)
    ours = Tokenizer.from_file(str(target / "tokenizer.json"))
    assert theirs("the 12 he<|im_end|>")["input_ids"] == ours.encode("the 12 he<|im_end|>").ids


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", pre="llama-bpe")
    with pytest.raises(ConfigError, match="llama-bpe"):
        convert(tmp_path / "model.gguf", tmp_path, lambda done, total: None)
