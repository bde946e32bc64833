"""A manifest beside the files of a folder: size and sha256 of each."""

import hashlib
import json
from pathlib import Path

FILE_NAME = "manifest.json"


def write_manifest(folder: Path, *, source: str) -> None:
    """Record the files of `folder`, but for links to others, and where they came from."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.is_symlink() and path.name != FILE_NAME
    }
    text = json.dumps({"source": source, "files": files}, indent=2)
    (folder / FILE_NAME).write_text(text + "\n", encoding="utf-8")


def damaged_files(folder: Path, *, full: bool = False) -> list[str]:
    """Name the files that are not as recorded; an unreadable manifest counts as damaged.

    Args:
        full: compare every byte instead of sizes only.
    """
    try:
        files = json.loads((folder / FILE_NAME).read_bytes())["files"]
        return [name for name, entry in files.items() if not _matches(folder / name, entry, full)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [FILE_NAME]


def file_sha256(path: Path) -> str:
    """Hash a file without reading it into memory at once."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _matches(path: Path, entry: dict[str, int | str], full: bool) -> bool:
    if not path.is_file() or path.stat().st_size != entry["bytes"]:
        return False
    return not full or file_sha256(path) == entry["sha256"]
