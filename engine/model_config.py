"""Reads the shape of a model from its folder. Standard library only.

Missing fields mean what they mean in transformers.
"""

import json
from dataclasses import replace
from pathlib import Path

from engine.architectures.architecture import Architecture
from engine.architectures.fields import Json
from engine.architectures.registry import ARCHITECTURES, WRAPPERS
from engine.config import ModelConfig
from engine.errors import ConfigError

# lists what follows the transformer in the folder of an embedding model
EMBEDDING_MODULES = "modules.json"


def read_model_config(folder: Path) -> ModelConfig:
    """Read config.json and, where there is one, generation_config.json.

    An embedding model has no use for a head, so none of its own is read.

    Raises:
        ConfigError: if a file is missing or damaged, or the model's kind is not supported.
    """
    config = read_json(folder / "config.json")
    generation = folder / "generation_config.json"
    try:
        model = _parse(config, read_json(generation) if generation.exists() else {})
    except ConfigError as error:
        raise ConfigError(f"{folder / 'config.json'}: {error}") from None
    is_embedding = (folder / EMBEDDING_MODULES).exists()
    return replace(model, tie_embeddings=True) if is_embedding else model


def read_json(path: Path) -> Json:
    """Read a file of a model's folder.

    Raises:
        ConfigError: if it is missing, or not a JSON object.
    """
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing: {path.parent} is not a model folder") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds {type(value).__name__}, expected an object")
    return value


def _parse(config: Json, generation: Json) -> ModelConfig:
    packed = config.get("quantization_config")
    config = _text_part(config)
    architecture = _architecture(config)
    if packed and _packing(packed) not in architecture.packings:
        raise ConfigError("quantised weights are not supported; choose a float16 or bfloat16 model")
    model = architecture.parse(config)
    named = _eos_token_ids(generation, model.vocab_size)
    if "eos_token_id" in config:
        named = (*_eos_token_ids(config, model.vocab_size), *named)
    elif not named:
        named = architecture.eos_token_ids
    return replace(model, eos_token_ids=tuple(dict.fromkeys(named)))


def _packing(packed: object) -> object:
    return packed.get("quant_method") if isinstance(packed, dict) else packed


def _text_part(config: Json) -> Json:
    """The settings of the text model of a model with images; others as they are."""
    wrapper = WRAPPERS.get(str(_name(config, {kind: n for n, (kind, _) in WRAPPERS.items()})))
    if wrapper is None:
        return config
    text = config.get("text_config")
    if not isinstance(text, dict):
        raise ConfigError(f"text_config {text!r} is not an object")
    # what a wrapper says of both counts
    both = {name: config[name] for name in ("tie_word_embeddings", "eos_token_id", "auto_map")
            if name in config}  # fmt: skip
    kind = text.get("model_type", wrapper[1])
    return {**text, **both, "architectures": None, "model_type": kind}


def _architecture(config: Json) -> Architecture:
    name = _name(config, {row.model_type: name for name, row in ARCHITECTURES.items()})
    found = ARCHITECTURES.get(str(name))
    if config.get("auto_map") and not (found and found.ships_code):
        raise ConfigError("the model brings code of its own (auto_map), which is never run")
    if found is None:
        kind = name or config.get("model_type")
        raise ConfigError(
            f"architecture {kind!r} is not supported; docs/models.md lists those that are"
        )
    return found


def _name(config: Json, by_type: dict[str, str]) -> object:
    """The architecture that a file names, by itself or by its model type."""
    named = config.get("architectures") or [by_type.get(str(config.get("model_type")))]
    return named[0] if isinstance(named, list) else named


def _eos_token_ids(source: Json, vocab_size: int) -> tuple[int, ...]:
    value = source.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if type(token) is not int or not 0 <= token < vocab_size:
            raise ConfigError(f"eos_token_id {token!r} is not in the vocabulary of {vocab_size}")
    return tuple(ids)
