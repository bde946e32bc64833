"""Folders of the cache that are built once: locked, complete or not there at all."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from app.models.manifest import FILE_NAME, damaged_files, write_manifest
from engine.errors import ConfigError


def build_once(folder: Path, source: str, build: Callable[[Path], None]) -> Path:
    """Return `folder`, built on the first call and again when its source changed.

    Processes of one node wait for the one that builds. A folder is built beside its place and
    moved there when it is complete, so that what an ended process left behind is never used.

    Args:
        source: says what the folder is made from; another text makes it outdated.
        build: fills an empty folder; what it raises is passed on.
    """
    if _is_current(folder, source):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if not _is_current(folder, source):
            _build(folder, source, build)
    return folder


def check_disk_space(folder: Path, needed_bytes: int) -> None:
    """Make sure that the disk of an existing folder has room.

    Raises:
        ConfigError: saying how much is needed and free.
    """
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise ConfigError(
            f"the converted model needs {needed_bytes / 1e9:.2f} GB in {folder.parent}, where "
            f"{free_bytes / 1e9:.2f} GB are free; free some or set cache_folder to another disk"
        )


def _is_current(folder: Path, source: str) -> bool:
    try:
        recorded = json.loads((folder / FILE_NAME).read_bytes())["source"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return recorded == source and not damaged_files(folder)


def _build(folder: Path, source: str, build: Callable[[Path], None]) -> None:
    partial, outdated = (folder.with_name(f"{folder.name}.{what}") for what in ("partial", "old"))
    for leftover in (partial, outdated):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir()
    try:
        build(partial)
    except BaseException:
        # a full disk must not stay full
        shutil.rmtree(partial, ignore_errors=True)
        raise
    write_manifest(partial, source=source)
    if folder.exists():
        folder.rename(outdated)
    partial.rename(folder)
    shutil.rmtree(outdated, ignore_errors=True)
