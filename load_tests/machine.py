"""What a figure depends on beside the program: processor, cards, versions, commit."""

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from load_tests import ROOT

PACKAGES = ("torch", "transformers", "ray", "triton", "vllm", "aiohttp")


def describe() -> dict[str, object]:
    """Describe this machine, the installed packages and the commit, as JSON values."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
        "cards": cards(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def name() -> str:
    """Name what the figures were measured on in a few words."""
    cores = f"{cpu_model()}, {len(os.sched_getaffinity(0))} cores"
    return " + ".join(dict.fromkeys(cards())) or cores


def cpu_model() -> str:
    """Read the processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cards() -> list[str]:
    """List the NVIDIA GPUs of this machine."""
    if shutil.which("nvidia-smi") is None:
        return []
    return _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()


def card_memory_bytes() -> int | None:
    """Bytes of memory of the first NVIDIA GPU; None without one."""
    if shutil.which("nvidia-smi") is None:
        return None
    lines = _output("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
    return int(lines.splitlines()[0]) << 20 if lines else None


def commit() -> str:
    """Name the commit of this checkout, with + when tracked files differ; empty outside of git."""
    head = _output("git", "rev-parse", "--short", "HEAD")
    is_changed = _output("git", "status", "--porcelain", "--untracked-files=no")
    return head + ("+" if head and is_changed else "")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
