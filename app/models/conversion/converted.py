"""Finds what of a model has to be converted, and its converted folder in the cache."""

import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from app.models.built_folder import build_once
from app.models.checkpoint import has_weights
from app.models.conversion.gguf_model import convert_gguf
from app.models.conversion.gguf_reader import gguf_files
from app.models.conversion.pickled_weights import convert_pickled, pickled_files
from app.models.conversion.safetensors_writer import Advance
from app.models.conversion.slow_tokenizer import convert_tokenizer, slow_tokenizer_files

logger = logging.getLogger(__name__)

# grows when a conversion changes: folders made before are built again
_VERSION = 1
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SMALL_FILES = ("*.json", "*.jinja", "additional_chat_templates/*.jinja")


def converted(model: Path, cache: Path, *, with_weights: bool = True) -> Path:
    """Return a folder with safetensors and tokenizer.json: the model's own, or one of the cache.

    Args:
        model: a model folder, or a GGUF file.
        cache: where converted folders are kept, below `models`.
        with_weights: False where configuration and tokenizer are enough.

    Raises:
        ConfigError: if something has to be converted and cannot be.
    """
    if ggufs := gguf_files(model):
        return _build(
            ggufs,
            model,
            cache,
            with_weights,
            lambda target, advance: convert_gguf(ggufs, target, advance, with_weights=with_weights),
        )
    tokenizer = [model / name for name in slow_tokenizer_files(model)]
    weights = pickled_files(model) if with_weights and not has_weights(model) else []
    if not tokenizer and not weights:
        return model

    def convert(target: Path, advance: Advance) -> None:
        _copy_small_files(model, target)
        if weights:
            convert_pickled(model, target, advance)
        elif with_weights:
            _link_weights(model, target)
        if tokenizer:
            convert_tokenizer(model, target)

    used = [path for pattern in _SMALL_FILES for path in model.glob(pattern)]
    return _build([*used, *tokenizer, *weights], model, cache, with_weights, convert)


def _build(
    sources: Iterable[Path],
    model: Path,
    cache: Path,
    with_weights: bool,
    convert: Callable[[Path, Advance], None],
) -> Path:
    digest = hashlib.sha256(os.fsencode(model)).hexdigest()[:12]
    name = f"{_name(model)}-{digest}"
    folder = cache / "models" / (name if with_weights else f"{name}-texts")

    def build(target: Path) -> None:
        started_s = time.monotonic()
        with Progress(console=Console(stderr=True, soft_wrap=True)) as progress:
            task = progress.add_task(f"converting {model.name}", total=None)
            convert(target, lambda done, total: progress.update(task, completed=done, total=total))
        logger.info(
            "model_converted source=%s folder=%s seconds=%.1f",
            model,
            folder,
            time.monotonic() - started_s,
        )

    return build_once(folder, _state(sources), build)


def _name(model: Path) -> str:
    """Name a model after its folder or file, behind the commit if it is of the hub's cache."""
    name = model.stem if model.is_file() else model.name
    commit = next((part for part in model.parts[:-1] if _COMMIT.fullmatch(part)), None)
    return f"{commit}-{name}" if commit else name


def _state(sources: Iterable[Path]) -> str:
    """What of the files of a source changes when they do."""
    found = sorted((path, path.stat()) for path in set(sources))
    files = [f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in found]
    return "; ".join([f"conversion {_VERSION}", *files])


def _copy_small_files(folder: Path, target: Path) -> None:
    for pattern in _SMALL_FILES:
        for path in folder.glob(pattern):
            # they describe weights in other files
            if path.name.endswith(".index.json"):
                continue
            copy = target / path.relative_to(folder)
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, copy)


def _link_weights(folder: Path, target: Path) -> None:
    """Name the weights in their place: they need no conversion, and a copy would take the disk."""
    for pattern in ("*.safetensors", "*.safetensors.index.json"):
        for path in folder.glob(pattern):
            (target / path.name).symlink_to(path.absolute())
