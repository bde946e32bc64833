"""Reads the shape of a model from its folder. Standard library only.

Missing fields mean what they mean in transformers.
"""

import json
from dataclasses import replace
from pathlib import Path

from engine.architectures.fields import Json
from engine.architectures.registry import ARCHITECTURES
from engine.config import ModelConfig
from engine.errors import ConfigError


def read_model_config(folder: Path) -> ModelConfig:
    """Read config.json and, where there is one, generation_config.json.

    Raises:
        ConfigError: if a file is missing or damaged, or the model's kind is not supported.
    """
    config = read_json(folder / "config.json")
    generation = folder / "generation_config.json"
    try:
        return _parse(config, read_json(generation) if generation.exists() else {})
    except ConfigError as error:
        raise ConfigError(f"{folder / 'config.json'}: {error}") from None


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
    architecture = ARCHITECTURES[_architecture(config)]
    if config.get("quantization_config"):
        raise ConfigError("quantised weights are not supported; choose a float16 or bfloat16 model")
    model = architecture.parse(config)
    named = _eos_token_ids(generation, model.vocab_size)
    if "eos_token_id" in config:
        named = (*_eos_token_ids(config, model.vocab_size), *named)
    elif not named and architecture.eos_token_id is not None:
        named = (architecture.eos_token_id,)
    return replace(model, eos_token_ids=tuple(dict.fromkeys(named)))


def _architecture(config: Json) -> str:
    supported = f"supported are {', '.join(ARCHITECTURES)}"
    if config.get("auto_map"):
        raise ConfigError(f"the model brings code of its own (auto_map), never run; {supported}")
    by_type = {architecture.model_type: name for name, architecture in ARCHITECTURES.items()}
    named = config.get("architectures") or [by_type.get(str(config.get("model_type")))]
    if not isinstance(named, list) or named[0] not in ARCHITECTURES:
        kind = named[0] if isinstance(named, list) and named[0] else config.get("model_type")
        raise ConfigError(f"architecture {kind!r} is not supported; {supported}")
    return str(named[0])


def _eos_token_ids(source: Json, vocab_size: int) -> tuple[int, ...]:
    value = source.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if type(token) is not int or not 0 <= token < vocab_size:
            raise ConfigError(f"eos_token_id {token!r} is not in the vocabulary of {vocab_size}")
    return tuple(ids)
