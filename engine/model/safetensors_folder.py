"""Reads parameters out of the safetensors files of a model folder, slice by slice."""

from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import ConfigError
from engine.model_files import TensorInfo, find_weights

# takes bytes done and bytes in total
Progress = Callable[[int, int], None]


class SafetensorsFolder:
    """A `ParameterSource` over mapped files: only the slices that are asked for are read."""

    def __init__(
        self,
        folder: Path,
        on_progress: Progress,
        canonical_name: Callable[[str], str] = str,
    ) -> None:
        """Open the files that `find_weights` finds.

        Args:
            on_progress: called with bytes done and in total, at once and after each tensor.
            canonical_name: how the model spells the name of a stored tensor.

        Raises:
            ConfigError: if there are none or one cannot be read.
        """
        self._folder = folder
        found = find_weights(folder)
        self._files = {path: _open(path) for path in {path for path, _ in found.values()}}
        # canonical name -> file, stored name, place in the file
        self._homes = {
            canonical_name(name): (path, name, info) for name, (path, info) in found.items()
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
        path, stored_name, info = self._home(name)
        if info.shape != shape:
            raise ConfigError(
                f"{path}: tensor {name!r} has shape {info.shape}, config.json says {shape}; are "
                "they of one model?"
            )
        stored = self._files[path].get_slice(stored_name)  # type: ignore[no-untyped-call]
        wanted = slice(start, start + target.shape[dim])
        target.copy_(stored[(slice(None),) * dim + (wanted,)])
        if name in self._unread:
            self._unread.remove(name)
            self._done_bytes += info.end - info.start
            self._on_progress(self._done_bytes, self._total_bytes)

    def skip(self, name: str) -> None:
        """See `ParameterSource`."""
        self._home(name)
        self._unread.discard(name)

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

    def _home(self, name: str) -> tuple[Path, str, TensorInfo]:
        if name not in self._homes:
            raise ConfigError(
                f"{self._folder / '*.safetensors'}: tensor {name!r} is missing; is config.json of "
                "another model, or was the model not fetched completely?"
            )
        return self._homes[name]


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path}: cannot be read as safetensors ({error})") from error
