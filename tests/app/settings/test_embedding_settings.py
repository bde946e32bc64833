"""Folders of embedding models, as Sentence Transformers writes them."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.models.checkpoint import check_weights
from app.settings.embedding_settings import read_embedding_settings
from engine.errors import ConfigError
from engine.model_config import read_model_config
from tests.engine.model.tiny import TinyModel, save_tiny

_KINDS = ("Transformer", "Pooling", "Normalize")


def _write(folder: Path, *kinds: str, pooling: Any) -> None:
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "",
         "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


@pytest.fixture
def model(tmp_path: Path) -> TinyModel:
    return save_tiny("qwen3", tmp_path)


def test_any_decoder_gives_its_last_state(model: TinyModel) -> None:
    settings = read_embedding_settings(model.folder, model.config().model)
    assert (settings.size, settings.pooling) == (64, "last")
    assert not settings.is_normalized
    assert not settings.is_own


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
        ({"pooling_mode_mean_tokens": True, "include_prompt": True}, "mean"),
        ({"pooling_mode": "lasttoken"}, "last"),
    ],
)
def test_an_embedding_model_says_how(model: TinyModel, pooling: Any, expected: str) -> None:
    _write(model.folder, *_KINDS, pooling=pooling)
    settings = read_embedding_settings(model.folder, model.config().model)
    assert settings.pooling == expected
    assert settings.is_normalized
    assert settings.is_own
    _write(model.folder, *_KINDS[:2], pooling=pooling)
    assert not read_embedding_settings(model.folder, model.config().model).is_normalized


@pytest.mark.parametrize(
    ("kinds", "pooling", "words"),
    [
        (("Transformer", "Pooling", "Dense"), {"pooling_mode_lasttoken": True}, "'Dense'"),
        (_KINDS, {"pooling_mode_cls_token": True}, "pooling_mode_cls_token"),
        (_KINDS, {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": True}, "one of"),
        (_KINDS, {}, "pooling_mode None"),
        (("Transformer",), {}, "no Pooling"),
    ],
)
def test_what_is_not_served_is_named(
    model: TinyModel, kinds: tuple[str, ...], pooling: Any, words: str
) -> None:
    _write(model.folder, *kinds, pooling=pooling)
    with pytest.raises(ConfigError, match=words):
        read_embedding_settings(model.folder, model.config().model)


def test_weights_without_a_head_and_with_bare_names_are_an_embedding_models(
    model: TinyModel,
) -> None:
    """As Qwen3-Embedding is published."""
    from safetensors.torch import load_file, save_file

    path = model.folder / "model.safetensors"
    bare = {
        name.removeprefix("model."): tensor
        for name, tensor in load_file(path).items()
        if name != "lm_head.weight"
    }
    save_file(bare, path)
    with pytest.raises(ConfigError, match=r"lacks tensor 'lm_head\.weight'"):
        check_weights(model.folder, read_model_config(model.folder))
    _write(model.folder, *_KINDS, pooling={"pooling_mode_lasttoken": True})
    check_weights(model.folder, read_model_config(model.folder))
