"""Finds what would make the engine fail, before any process starts.

`python -m app.preflight serve_config.yaml` checks every application of the file.
"""

import logging
import math
import sys
from pathlib import Path

import psutil

from app.models.checkpoint import check_weights, expected_tensors, has_weights
from app.models.model_store import is_local, resolve
from app.recorder.trace_file import check_folder
from app.serve import scaling
from app.settings.config import AppConfig, parse_config
from app.settings.engine_settings import to_engine_config
from app.settings.sampling_defaults import read_sampling_defaults
from app.settings.serve_file import applications, policies
from engine.config import DTYPE_BYTES, EngineConfig
from engine.errors import ConfigError
from engine.model_config import read_model_config


def check(config: AppConfig, *, with_weights: bool = True) -> EngineConfig:
    """Check options, model folder and machine; fetch what is needed of the model.

    torch is not imported and no weight is read, but where a model has to be converted.

    Args:
        with_weights: False where no engine will run: weights in a bucket or in the hub are not
            fetched, and only checked if they are here.

    Raises:
        ConfigError: with one message that says what to change.
    """
    if config.flight_recorder.folder is not None:
        check_folder(config.flight_recorder.folder.expanduser())
    has_files = config.load_format == "safetensors"
    with_weights = has_files and (with_weights or is_local(config.model))
    folder = resolve(
        config.model, config.cache_folder, revision=config.revision, with_weights=with_weights
    )
    model = read_model_config(folder)
    if config.generation_config == "use":
        read_sampling_defaults(folder)
    engine = to_engine_config(config, folder, model)
    if not (folder / "tokenizer.json").exists():
        raise ConfigError(
            f"{folder} has no tokenizer.json, tokenizer.model, or vocab.json and merges.txt; "
            "convert its tokenizer to one of them"
        )
    if with_weights or (has_files and has_weights(folder)):
        check_weights(folder, model)
    if engine.device == "cpu" and engine.placement_strategy == "STRICT_PACK":
        # ranks on other nodes have memory that is not seen from here
        _check_memory(engine)
    return engine


def check_file(
    path: Path, *, with_weights: bool = True, shown: Path | None = None
) -> list[EngineConfig]:
    """Check the `args` of every application in a Serve configuration file, and our scaling policy.

    Args:
        with_weights: see `check`.
        shown: the file that messages name; None for `path`.

    Returns:
        the engines that the applications ask for.

    Raises:
        ConfigError: naming the file or the application.
    """
    shown, engines = shown or path, []
    for name, args in applications(path):
        try:
            engines.append(check(parse_config(args), with_weights=with_weights))
        except ConfigError as error:
            raise ConfigError(f"{shown}, application {name!r}: {error}") from error
    for name, policy in policies(path):
        if policy.get("policy_function") == scaling.NAME:
            try:
                scaling.ScalingTargets.of(policy.get("policy_kwargs") or {})
            except ValueError as error:
                raise ConfigError(f"{shown}, application {name!r}: {error}") from error
    return engines


def _check_memory(engine: EngineConfig) -> None:
    """Check that one copy of the weights and the pools of all ranks fit the CPU memory."""
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
    """Check the file named on the command line; return 0 if it can be served, else 1."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        check_file(Path(sys.argv[1] if len(sys.argv) > 1 else "serve_config.yaml"))
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
