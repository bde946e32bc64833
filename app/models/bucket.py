"""Model folders in object stores, such as gs://bucket/folder, copied to each node by fsspec."""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from filelock import FileLock

from engine.errors import ConfigError

logger = logging.getLogger(__name__)

_STATE = ".fetched"
# what of an object's description changes when the object does, in the stores that fsspec knows
_VERSION_KEYS = ("size", "generation", "etag", "ETag", "md5Hash", "crc32c", "mtime", "LastModified")


@dataclass(slots=True)
class _Fetched:
    """What was copied: file -> version of the object; what for it was complete at the end."""

    versions: dict[str, str] = field(default_factory=dict)
    complete: list[str] = field(default_factory=list)


def is_url(model: str) -> bool:
    """Whether a model's name is the address of a folder in a store."""
    return "://" in model


def fetch(
    url: str,
    cache: Path,
    is_wanted: Callable[[str], bool],
    what: str,
    needed: str = "config.json",
) -> Path:
    """Return the local copy of a folder, fetching the wanted files that are not here or changed.

    Processes of one node wait for the one that fetches. Without the store a copy that was complete
    is good enough.

    Args:
        url: of the folder; only files directly in it count.
        cache: where copies are kept, below `models`.
        is_wanted: of a file's name.
        what: names what is wanted, the same for the same `is_wanted`.
        needed: file without which the folder is none.

    Raises:
        ConfigError: if the store cannot be read or has no such file.
    """
    name = PurePosixPath(url.rstrip("/")).name
    digest = hashlib.sha256(url.encode()).hexdigest()[:12]
    folder = cache / "models" / f"{name}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        fetched = _read_state(folder)
        try:
            _update(url, folder, is_wanted, fetched, needed)
        # stores raise exceptions of their own, which have nothing in common
        except Exception as error:
            if what not in fetched.complete:
                raise ConfigError(f"model {url!r} cannot be fetched: {_hint(error)}") from error
            logger.warning("model_not_checked url=%s reason=%r serving=%s", url, error, folder)
            return folder
        fetched.complete = sorted({*fetched.complete, what})
        _write_state(folder, fetched)
    return folder


def _update(
    url: str, folder: Path, is_wanted: Callable[[str], bool], fetched: _Fetched, needed: str
) -> None:
    # takes longer to import than `pagoda serve --help` may
    import fsspec

    store, root = fsspec.core.url_to_fs(url)
    found: dict[str, Mapping[str, Any]] = {
        PurePosixPath(info["name"]).name: info
        for info in store.ls(root, detail=True)
        if info["type"] == "file"
    }
    wanted = {name: info for name, info in found.items() if is_wanted(name) and name[0] != "."}
    if needed not in wanted:
        raise FileNotFoundError(f"there is no {needed} in {url}")
    for name, info in wanted.items():
        version = repr([(key, str(info[key])) for key in _VERSION_KEYS if key in info])
        if fetched.versions.get(name) == version and (folder / name).exists():
            continue
        # a file in use keeps its content: it is replaced, never written to
        partial = folder / f".{name}.partial"
        store.get_file(info["name"], str(partial))
        partial.rename(folder / name)
        fetched.versions[name] = version
        _write_state(folder, fetched)


def _read_state(folder: Path) -> _Fetched:
    try:
        return _Fetched(**json.loads((folder / _STATE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return _Fetched()


def _write_state(folder: Path, fetched: _Fetched) -> None:
    partial = folder / f"{_STATE}.partial"
    partial.write_text(json.dumps(asdict(fetched)), encoding="utf-8")
    partial.rename(folder / _STATE)


def _hint(error: Exception) -> str:
    if isinstance(error, ImportError):
        return f"{error}; for gs:// install pagoda[gcp]"
    return (
        f"{str(error) or repr(error):.300}; check the address, the network and this node's "
        "permission to read the bucket"
    )
