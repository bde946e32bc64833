"""Finds what would make the engine fail, in a second and before anything heavy starts.

`python -m app.preflight serve_config.yaml` checks every application of the file.
"""

import logging
import math
import sys
from pathlib import Path
from typing import Any

import psutil
import yaml

from app.config import AppConfig, parse_config
from app.engine_settings import DTYPE_BYTES, to_engine_config
from app.model_store import resolve
from engine.config import EngineConfig, ModelConfig
from engine.errors import ConfigError
from engine.model_config import read_model_config
from engine.model_files import TensorInfo, find_weights

_FLOAT_DTYPES = ("F32", "F16", "BF16")


def check(config: AppConfig) -> EngineConfig:
    """Check options, model folder and machine; fetch the model when it is not here yet.

    torch is not imported and no weight is read.

    Raises:
        ConfigError: with one message that says what to change.
    """
    folder = resolve(config.model, config.cache_folder)
    model = read_model_config(folder)
    engine = to_engine_config(config, folder, model)
    if not (folder / "tokenizer.json").exists():
        raise ConfigError(f"{folder} has no tokenizer.json; convert its tokenizer to that format")
    if config.load_format == "safetensors":
        _check_weights(folder, model)
    if engine.device == "cpu":
        _check_memory(engine)
    return engine


def check_file(path: Path) -> None:
    """Check the `args` of every application in a Serve configuration file.

    Raises:
        ConfigError: naming the file or the application.
    """
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        applications = [(app["name"], app.get("args") or {}) for app in content["applications"]]
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except (OSError, ValueError, yaml.YAMLError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path} is not a Serve configuration file: {error!r:.300}") from error
    for name, args in applications:
        try:
            check(parse_config(args))
        except ConfigError as error:
            raise ConfigError(f"{path}, application {name!r}: {error}") from error


def expected_tensors(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors of a model's checkpoint."""
    hidden = model.hidden_size
    tensors: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (model.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not model.tie_embeddings:
        tensors["lm_head.weight"] = (model.vocab_size, hidden)
    layer = _layer_tensors(model)
    for index in range(model.num_layers):
        tensors |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return tensors


def _layer_tensors(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = model.hidden_size, model.intermediate_size
    q_size, kv_size = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    tensors: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q_size, hidden),
        "self_attn.k_proj.weight": (kv_size, hidden),
        "self_attn.v_proj.weight": (kv_size, hidden),
        "self_attn.o_proj.weight": (hidden, q_size),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if model.attention_bias:
        tensors |= {f"self_attn.{name}_proj.bias": (kv_size,) for name in ("k", "v")}
        tensors["self_attn.q_proj.bias"] = (q_size,)
    if model.output_bias:
        tensors["self_attn.o_proj.bias"] = (hidden,)
    return tensors


def _check_weights(folder: Path, model: ModelConfig) -> None:
    found = find_weights(folder)
    expected = expected_tensors(model)
    if missing := sorted(expected.keys() - found.keys()):
        raise ConfigError(
            f"{folder} lacks tensor {missing[0]!r} ({len(missing)} of {len(expected)} missing); "
            "config.json and weights are not from the same model, or it was not fetched completely"
        )
    for name, (path, info) in found.items():
        if name in expected:
            _check_tensor(f"{path}: tensor {name!r}", info, expected[name])
        elif not (name.endswith("rotary_emb.inv_freq") or name == "lm_head.weight"):
            raise ConfigError(
                f"{path}: tensor {name!r} has no place in a {model.architecture} as config.json "
                "describes it; config.json and weights are not from the same model"
            )


def _check_tensor(what: str, info: TensorInfo, shape: tuple[int, ...]) -> None:
    if info.shape != shape:
        raise ConfigError(
            f"{what} has shape {list(info.shape)}, config.json makes it {list(shape)}; "
            "config.json and weights are not from the same model"
        )
    if info.dtype not in _FLOAT_DTYPES:
        raise ConfigError(
            f"{what} has dtype {info.dtype}, supported are {', '.join(_FLOAT_DTYPES)}; choose a "
            "model that is not quantised"
        )


def _check_memory(engine: EngineConfig) -> None:
    """All ranks of a CPU engine live on one machine: one copy of the weights, a pool for each."""
    value_bytes = DTYPE_BYTES[engine.dtype]
    parameters = sum(math.prod(shape) for shape in expected_tensors(engine.model).values())
    token_bytes = engine.model.kv_bytes_per_token(value_bytes, engine.tensor_parallel_size)
    pool_bytes = engine.num_blocks * engine.block_size * token_bytes * engine.tensor_parallel_size
    needed_bytes = parameters * value_bytes + pool_bytes
    free_bytes = psutil.virtual_memory().available
    if needed_bytes > free_bytes:
        raise ConfigError(
            f"{_gib(parameters * value_bytes)} of weights and {_gib(pool_bytes)} of KV pool do not "
            f"fit the {_gib(free_bytes)} of free memory; lower kv_cache_gib (num_blocks), choose a "
            "smaller model or free memory"
        )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.2f} GiB"


def main() -> int:
    """Check the file named on the command line; the exit code says whether it can be served."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        check_file(Path(sys.argv[1] if len(sys.argv) > 1 else "serve_config.yaml"))
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
