"""What is simulated, from the file that `serve run` takes: asked of the application itself."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from engine.config import DType, EngineConfig
from engine.types import Capacity
from load_tests import ROOT

BYTES_PER_VALUE: dict[DType, int] = {"float32": 4, "float16": 2, "bfloat16": 2}

# option -> value as YAML
Changes = Mapping[str, str]


class _Answer(msgspec.Struct):
    engine: EngineConfig | None = None
    error: str | None = None


def read_settings(config: Path, variants: Sequence[Changes]) -> list[EngineConfig | str]:
    """Resolve the first application of a file as it is when it is served, with changed options.

    Args:
        config: the Serve configuration file.
        variants: what is changed, for each of the settings to return.

    Returns:
        Settings, or why they cannot be used, for each variant.

    Raises:
        ValueError: if the file cannot be used at all.
    """
    done = subprocess.run(
        [sys.executable, "-m", "app.settings.resolved_config", str(config.absolute())],
        input=json.dumps([dict(changes) for changes in variants]),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    if done.returncode:
        raise ValueError(done.stderr.strip().splitlines()[-1])
    answers = msgspec.json.decode(done.stdout, type=list[_Answer])
    return [_settings(answer) for answer in answers]


def _settings(answer: _Answer) -> EngineConfig | str:
    if answer.engine is None:
        assert answer.error is not None
        return answer.error
    if not answer.engine.num_blocks:
        return (
            "only the worker knows how many blocks the GPU's memory holds: it logs num_blocks when "
            "it starts; say it with --set num_blocks=N"
        )
    return answer.engine


def capacity(config: EngineConfig, block_copy_s: float = 0.0) -> Capacity:
    """What the workers of an engine hold.

    Args:
        block_copy_s: seconds to copy a block to or from the swap space.
    """
    token_bytes = config.model.kv_bytes_per_token(
        BYTES_PER_VALUE[config.dtype], config.tensor_parallel_size
    )
    return Capacity(
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        num_rows=config.max_num_seqs,
        num_swap_blocks=(config.swap_bytes or 0) // (token_bytes * config.block_size),
        block_copy_s=block_copy_s,
    )
