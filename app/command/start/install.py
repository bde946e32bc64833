"""Installs what Pagoda needs into this environment: `python -m app.command.start.install EXTRAS`.

It runs before anything is installed, and needs the standard library only. uv installs where it can
be had, as it says how many packages there are and what it is at; otherwise pip does.
"""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.command.environment import own_environment

_UV = "uv==0.13.9"
# pip's settings -> flags of uv, which reads none of pip's files
_HANDED_ON = {"find-links": "--find-links", "index-url": "--index-url",
              "extra-index-url": "--extra-index-url"}  # fmt: skip
_RESOLVED = re.compile(r"Resolved (\d+) packages")
_STEP = re.compile(r"^\s*(Downloading|Building|Prepared|Installed)\b.*")


def main(arguments: Sequence[str]) -> int:
    """Install this folder with extras such as `[dev]`; returns the exit code."""
    target = "." + (arguments[0] if arguments else "")
    started_s = time.monotonic()
    uv = _find_uv()
    if uv is not None:
        flags = uv_flags(_pip_settings())
        command = [uv, "pip", "install", "--python", sys.executable, *flags]
        num_packages, code = _run_uv([*command, "-c", "constraints.txt", "-e", target])
    else:
        num_packages, code = 0, 1
    by = "uv"
    if code:
        # pip knows its own settings better, and says what is wrong
        by = "pip"
        sys.stdout.write("installing packages with pip, which takes minutes and says little\n")
        sys.stdout.flush()
        command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        code = subprocess.run([*command, "-c", "constraints.txt", "-e", target]).returncode
    if code == 0:
        seconds = time.monotonic() - started_s
        count = f"{num_packages} " if num_packages else ""
        sys.stdout.write(f"packages: {count}installed by {by} in {seconds:.0f} s\n")
    return code


def _find_uv() -> str | None:
    """Uv's program: the user's, or this environment's, installed now if it can be."""
    own = Path(sys.executable).parent / "uv"
    if (found := shutil.which("uv")) is not None or own.exists():
        return found or str(own)
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", _UV]
    done = subprocess.run(command, capture_output=True)
    return str(own) if done.returncode == 0 and own.exists() else None


def _pip_settings() -> dict[str, str]:
    """What files and variables set for pip; variables count more."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.findall(r"^\S+?\.([\w-]+)='(.*)'$", done.stdout, re.MULTILINE)
    variables = own_environment()
    return dict(sorted(found)) | {
        name: value for name in _HANDED_ON if (value := variables.get(_variable(name)))
    }


def _variable(name: str) -> str:
    return f"PIP_{name.upper().replace('-', '_')}"


def uv_flags(settings: Mapping[str, str]) -> list[str]:
    """Flags of uv that mean what pip's settings mean.

    Args:
        settings: name without its section -> value; several values are parted by white space.
    """
    flags = ["--color", "never"]
    for name, flag in _HANDED_ON.items():
        for value in settings.get(name, "").replace("\\n", " ").split():
            flags += [flag, value]
    if "extra-index-url" in settings:
        # as pip does: the best of all indices
        flags += ["--index-strategy", "unsafe-best-match"]
    if "cert" in settings:
        flags += ["--system-certs"]
    return flags


def _run_uv(command: Sequence[str]) -> tuple[int, int]:
    """Run uv, show how far it is on a terminal; returns the number of packages and its exit code.

    What it wrote is shown if it failed.
    """
    environment = own_environment() | {"UV_NO_PROGRESS": "1"}
    num_packages, lines = 0, list[str]()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if match := _RESOLVED.search(line):
                num_packages = int(match[1])
            if match := _STEP.match(line):
                _show(f"packages: {num_packages} in all, {match[0].strip()}")
    _show("")
    if process.returncode:
        sys.stderr.write("uv could not install:\n" + "".join(lines[-5:]))
    return num_packages, process.returncode


def _show(text: str) -> None:
    if sys.stdout.isatty():
        sys.stdout.write(f"\r\033[K{text}")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
