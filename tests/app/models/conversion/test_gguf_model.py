import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.integrations.gguf.dequant import dequantize as unpack
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from app.models.checkpoint import expected_tensors
from app.models.conversion.gguf_config import family_of, model_config
from app.models.conversion.gguf_model import GgufWeights, _Converted, convert_gguf, write_weights
from app.models.conversion.gguf_reader import GgufModel
from engine.errors import ConfigError
from engine.model_config import read_model_config
from tests.app.models.conversion.gguf_files import SPECIAL, TEMPLATE, tokens, write_gguf
from tests.app.models.conversion.gguf_models import TINY_GGUFS, published, write_tiny_gguf


def converted(folder: Path, *, tied: bool = True) -> tuple[Path, Path]:
    source = folder / "model.gguf"
    write_gguf(source, tied=tied)
    target = folder / "converted"
    target.mkdir()
    convert_gguf([source], target, lambda done, total: None)
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
        assert torch.equal(tensor, torch.as_tensor(theirs[name]).to(tensor.dtype)), name


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
    convert_gguf([source], tmp_path, lambda done, total: seen.append((done, total)))
    done, totals = zip(*seen, strict=True)
    assert len(seen) == 20
    assert list(done) == sorted(done)
    assert set(totals) == {done[-1]}


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
    write_gguf(tmp_path / "model.gguf", pre="of-nobody")
    with pytest.raises(ConfigError, match="of-nobody"):
        convert_gguf([tmp_path / "model.gguf"], tmp_path, lambda done, total: None)


def test_a_tensor_without_a_place_is_refused(tmp_path: Path) -> None:
    tiny = TINY_GGUFS["llama"]
    weights = published(tiny, tmp_path)
    kept = {name: tensor for name, tensor in weights.items() if "layers.1.mlp.up" not in name}
    write_tiny_gguf(tmp_path / "a.gguf", tiny, kept, GGMLQuantizationType.F32)
    with pytest.raises(ConfigError, match=r"lacks the tensor 'blk\.1\.ffn_up\.weight'"):
        convert_gguf([tmp_path / "a.gguf"], tmp_path, lambda done, total: None)
    more = weights | {"model.layers.1.self_attn.q_proj.bias": torch.zeros(64)}
    write_tiny_gguf(tmp_path / "b.gguf", tiny, more, GGMLQuantizationType.F32)
    with pytest.raises(ConfigError, match=r"'blk\.1\.attn_q\.bias' has no place in a Llama"):
        convert_gguf([tmp_path / "b.gguf"], tmp_path, lambda done, total: None)


KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0")


@pytest.mark.parametrize("family", TINY_GGUFS)
def test_every_family_gets_back_what_was_published(family: str, tmp_path: Path) -> None:
    tiny = TINY_GGUFS[family]
    weights = published(tiny, tmp_path)
    for kind in KINDS if family == "llama" else ("F32", "Q8_0"):
        source = tmp_path / f"{kind}.gguf"
        ggml = GGMLQuantizationType[kind]
        write_tiny_gguf(source, tiny, weights, ggml)
        model = GgufModel([source])
        config = model_config(model, family_of(model))
        shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        target = tmp_path / f"{kind}.safetensors"
        gguf_weights = GgufWeights(model, family_of(model), config)
        write_weights(target, gguf_weights, shapes, lambda done, total: None)
        ours = load_file(target)
        assert ours.keys() == weights.keys()
        for name, tensor in ours.items():
            expected = weights[name].float()
            if expected.ndim > 1 and kind == "Q8_0":
                # a block never crosses a row, whichever way the rows are turned
                assert (tensor.float() - expected).abs().max() < expected.abs().max() / 100
            elif kind == "F32":
                shifted = expected.ndim == 1 and family.startswith("gemma")
                torch.testing.assert_close(
                    tensor.float(), expected, rtol=0, atol=2e-7 if shifted else 0
                )
            elif expected.ndim > 1 and family == "llama" and "_proj" not in name:
                packed = quantize(expected.numpy(), ggml)
                exact = torch.from_numpy(dequantize(packed, ggml))
                assert torch.equal(tensor, exact.to(tensor.dtype))


@pytest.mark.parametrize("family", TINY_GGUFS)
def test_every_family_gets_back_its_config(family: str, tmp_path: Path) -> None:
    tiny = TINY_GGUFS[family]
    write_tiny_gguf(tmp_path / "a.gguf", tiny, published(tiny, tmp_path), GGMLQuantizationType.F16)
    model = GgufModel([tmp_path / "a.gguf"])
    (tmp_path / "config.json").write_text(json.dumps(model_config(model, family_of(model))))
    ours, theirs = AutoConfig.from_pretrained(tmp_path), tiny.config()
    assert ours.architectures == [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[theirs.model_type]]
    # what neither the file nor llama.cpp has, and no model's mathematics needs
    unknown = {"dtype", "architectures", "_name_or_path", "transformers_version", "hidden_act",
               "initializer_range", "router_aux_loss_coef", "cache_implementation",
               "pad_token_id"}  # fmt: skip
    found, expected = ours.to_dict(), theirs.to_dict()
    differing = {
        name: (found[name], expected.get(name))
        for name in found.keys() - unknown
        if found[name] != expected.get(name)
    }
    assert not differing


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K"])
def test_blocks_of_256_are_what_transformers_unpacks(kind: str) -> None:
    ggml = GGMLQuantizationType[kind]
    _, block_bytes = GGML_QUANT_SIZES[ggml]
    blocks = np.random.default_rng(0).integers(0, 256, (3, 2, block_bytes), np.uint8)
    # scales are float16, and none of them is NaN
    scales = np.frombuffer(np.array([0.01, 0.02], np.float16).tobytes(), np.uint8)
    if kind == "Q6_K":
        blocks[..., -2:] = scales[:2]
    else:
        blocks[..., :4] = scales
    packed = blocks.reshape(3, 2 * block_bytes)
    tensor = _Converted(
        packed=packed, kind=ggml, shape=(3, 512), is_transposed=False, subtracted=0.0
    )
    theirs = unpack(torch.from_numpy(packed), int(ggml)).reshape(3, 512)
    ours = torch.frombuffer(bytearray(tensor.data()), dtype=torch.bfloat16).reshape(3, 512)
    assert torch.equal(ours, theirs.bfloat16())
