"""How a model's folder wants its hidden states to become vectors.

Embedding models are published in the layout of Sentence Transformers: `modules.json` lists what
follows the transformer, each in a folder of its own.
"""

import json
from pathlib import Path
from typing import Any

from app.protocol.api_settings import EmbeddingSettings, TextPooling
from engine.config import ModelConfig
from engine.errors import ConfigError
from engine.model_config import EMBEDDING_MODULES, read_json

# of 1_Pooling/config.json: flag -> what it asks for
_POOLINGS: dict[str, TextPooling] = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
}
_NAMES: dict[str, TextPooling] = {"lasttoken": "last", "mean": "mean"}


def read_embedding_settings(folder: Path, model: ModelConfig) -> EmbeddingSettings:
    """Read modules.json, if there is one: without it any decoder gives the last token's state.

    Raises:
        ConfigError: naming what is not served.
    """
    path = folder / EMBEDDING_MODULES
    if not path.exists():
        return EmbeddingSettings(size=model.hidden_size)
    modules = [(_kind(module, path), module.get("path", "")) for module in _modules(path)]
    unknown = [kind for kind, _ in modules if kind not in ("Transformer", "Pooling", "Normalize")]
    if unknown:
        raise ConfigError(f"{path}: a module of type {unknown[0]!r:.100} is not served")
    [pooling_path] = [place for kind, place in modules if kind == "Pooling"] or [""]
    if not pooling_path:
        raise ConfigError(f"{path}: there is no Pooling module")
    return EmbeddingSettings(
        size=model.hidden_size,
        pooling=_pooling(folder / pooling_path / "config.json"),
        is_normalized=any(kind == "Normalize" for kind, _ in modules),
        is_own=True,
    )


def _modules(path: Path) -> list[dict[str, Any]]:
    try:
        modules = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ConfigError(f"{path} is no list of modules")
    return modules


def _kind(module: dict[str, Any], path: Path) -> str:
    kind = module.get("type")
    if not isinstance(kind, str) or not isinstance(module.get("path", ""), str):
        raise ConfigError(f"{path} has a module without a type")
    return kind.rpartition(".")[2]


def _pooling(path: Path) -> TextPooling:
    config = read_json(path)
    wanted = [name for name, value in config.items() if name.startswith("pooling_mode_") and value]
    named = config.get("pooling_mode")
    if named in _NAMES and not wanted:
        return _NAMES[named]
    if len(wanted) != 1 or wanted[0] not in _POOLINGS:
        asked = ", ".join(wanted) or f"pooling_mode {named!r:.100}"
        raise ConfigError(
            f"{path} asks for {asked}; served are {' and '.join(_POOLINGS)}, one of them"
        )
    return _POOLINGS[wanted[0]]
