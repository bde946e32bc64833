"""Turns `pytorch_model.bin`, in one file or several, into safetensors.

The files are pickles, which can run code. torch reads them with an unpickler of its own that knows
tensors and containers only and refuses all else; nothing but this module reads such files.
"""

import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.models.built_folder import check_disk_space
from app.models.conversion.safetensors_writer import Advance, write_safetensors
from engine.architectures.registry import ARCHITECTURES
from engine.errors import ConfigError
from engine.model_config import read_model_config
from engine.model_files import INDEX_FILE, SINGLE_FILE

PICKLED_FILE = "pytorch_model.bin"
PICKLED_INDEX = "pytorch_model.bin.index.json"

_DTYPES = {"torch.float32": "F32", "torch.float16": "F16", "torch.bfloat16": "BF16"}


def pickled_files(folder: Path) -> list[Path]:
    """Find the files that hold a model's pickled weights; none if it has no such weights.

    Raises:
        ConfigError: if the index is damaged or names files that are not here.
    """
    index = folder / PICKLED_INDEX
    if not index.exists():
        return [folder / PICKLED_FILE] if (folder / PICKLED_FILE).exists() else []
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        paths = [folder / Path(name).name for name in names]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{index} has no weight_map ({error!r:.200})") from error
    if missing := [path.name for path in paths if not path.is_file()]:
        raise ConfigError(
            f"{folder} lacks {', '.join(missing[:3])} ({len(missing)} of {len(paths)} files); "
            "fetch the model again"
        )
    return paths


def convert_pickled(folder: Path, target: Path, advance: Advance) -> None:
    """Write the weights of `folder` into `target`, values and dtypes as they are.

    Copies of what the model has elsewhere, such as a head that is the embedding, are left out. One
    file at a time is mapped, none is read whole.

    Args:
        target: an existing folder with the model's config.json.
        advance: called after each tensor.

    Raises:
        ConfigError: if a file cannot be read as plain tensors, or the disk is full.
    """
    sources = pickled_files(folder)
    total = sum(path.stat().st_size for path in sources)
    check_disk_space(target, total)
    is_wanted = _wanted(target)
    weight_map: dict[str, str] = {}
    done = 0

    def advanced(written: int) -> None:
        nonlocal done
        done += written
        advance(done, total)

    for number, source in enumerate(sources, start=1):
        name = SINGLE_FILE
        if len(sources) > 1:
            name = f"model-{number:05}-of-{len(sources):05}.safetensors"
        tensors = _load(source, is_wanted)
        write_safetensors(target / name, tensors.items(), advanced)
        weight_map |= dict.fromkeys(tensors, name)
    if len(sources) > 1:
        index = {"metadata": {}, "weight_map": weight_map}
        (target / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    advance(total, total)


def _wanted(folder: Path) -> Callable[[str], bool]:
    """What is not redundant; reading config.json first refuses what is not served."""
    model = read_model_config(folder)
    architecture = ARCHITECTURES[model.architecture]
    return lambda name: not architecture.is_redundant(model, architecture.canonical_name(name))


@dataclass(frozen=True, slots=True)
class _Pickled:
    """A `Writable` over a mapped tensor."""

    tensor: Any
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    def data(self) -> memoryview:
        # slow to import and needed by few
        import torch

        flat = self.tensor.detach().contiguous().reshape(-1)
        return memoryview(flat.view(torch.uint8).numpy())


def _load(path: Path, is_wanted: Callable[[str], bool]) -> dict[str, _Pickled]:
    import torch

    try:
        content = torch.load(
            path,
            map_location="cpu",
            weights_only=True,
            # files of torch before 1.6 are no archives and cannot be mapped
            mmap=zipfile.is_zipfile(path),
        )
    except Exception as error:  # torch raises what its parsers do, which has nothing in common
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ConfigError(
            f"{path} cannot be read as plain tensors ({reason:.200}); it is damaged, or it brings "
            "code, which is never run: fetch it again or choose a model in safetensors"
        ) from error
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor)
        for name, tensor in content.items()
    ):
        raise ConfigError(f"{path} is not a table of tensors, such as transformers write")
    wanted = {name: tensor for name, tensor in content.items() if is_wanted(name)}
    for name, tensor in wanted.items():
        if str(tensor.dtype) not in _DTYPES or tensor.layout != torch.strided:
            raise ConfigError(
                f"{path}: tensor {name!r} has dtype {tensor.dtype} ({tensor.layout}); supported "
                f"are {', '.join(_DTYPES)}"
            )
    return {name: _Pickled(tensor, _DTYPES[str(tensor.dtype)]) for name, tensor in wanted.items()}
