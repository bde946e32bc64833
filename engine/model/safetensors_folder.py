"""Reads parameters out of the safetensors files of a model folder, slice by slice."""

import json
import math
from collections.abc import Callable, Collection
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import ConfigError

# takes bytes done and bytes in total
Progress = Callable[[int, int], None]

_INDEX = "model.safetensors.index.json"


class SafetensorsFolder:
    """A `ParameterSource` over mapped files: only the slices that are asked for are read."""

    def __init__(
        self,
        folder: Path,
        on_progress: Progress,
        canonical_name: Callable[[str], str] = str,
    ) -> None:
        """Open the files named by the index, or else all there are.

        Args:
            on_progress: called with bytes done and in total, at once and after each tensor.
            canonical_name: how the model spells the name of a stored tensor.

        Raises:
            ConfigError: if there are none or one cannot be read.
        """
        self._folder = folder
        self._files = {path: _open(path) for path in _paths(folder)}
        # canonical name -> file and stored name
        self._homes = {
            canonical_name(name): (path, name)
            for path, file in self._files.items()
            for name in _names(file)
        }
        self._unread = set(self._homes)
        self._on_progress = on_progress
        self._done_bytes = 0
        self._total_bytes = sum(path.stat().st_size for path in self._files)
        on_progress(0, self._total_bytes)

    def fill(
        self, target: Tensor, name: str, shape: tuple[int, ...], *, dim: int, start: int
    ) -> None:
        """See `ParameterSource`."""
        path, stored_name = self._home(name)
        stored = self._files[path].get_slice(stored_name)  # type: ignore[no-untyped-call]
        if (found := tuple(stored.get_shape())) != shape:
            raise ConfigError(
                f"{path}: tensor {name!r} has shape {found}, config.json says {shape}"
            )
        wanted = slice(start, start + target.shape[dim])
        part = stored[(slice(None),) * dim + (wanted,)]
        target.copy_(part)
        if name in self._unread:
            self._unread.remove(name)
            self._done_bytes += math.prod(shape) * part.element_size()
            self._on_progress(self._done_bytes, self._total_bytes)

    def skip(self, name: str) -> None:
        """See `ParameterSource`."""
        self._home(name)
        self._unread.discard(name)

    def _home(self, name: str) -> tuple[Path, str]:
        if name not in self._homes:
            raise ConfigError(f"{self._folder / '*.safetensors'}: tensor {name!r} is missing")
        return self._homes[name]

    def check_all_read(self, ignored: Callable[[str], bool]) -> None:
        """Make sure that the model used every tensor but the ignored ones.

        Raises:
            ConfigError: naming a tensor that the model has no place for, and its file.
        """
        extra = sorted(name for name in self._unread if not ignored(name))
        if extra:
            raise ConfigError(
                f"{self._homes[extra[0]][0]}: tensor {extra[0]!r} has no place in the model "
                f"({len(extra)} such tensors); is config.json of another model?"
            )
        self._on_progress(self._total_bytes, self._total_bytes)


def _paths(folder: Path) -> Collection[Path]:
    index = folder / _INDEX
    paths = _indexed(index) if index.exists() else sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ConfigError(f"{folder}: there are no safetensors files")
    return paths


def _indexed(index: Path) -> list[Path]:
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
        return sorted(index.parent / Path(name).name for name in names)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{index}: not an index of safetensors files ({error!r})") from error


def _names(file: safe_open) -> list[str]:
    return list(file.keys())  # type: ignore[no-untyped-call]


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path}: cannot be read as safetensors ({error})") from error
