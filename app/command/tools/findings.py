"""What `pagoda doctor` looks at: each function returns what it found, and how to repair it."""

import os
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from app.settings.config import AppConfig

Colour = Literal["green", "yellow", "red"]
_MIN_FILES = 4096
_MIN_SHM_BYTES = 2 << 30
_MIN_DISK_BYTES = 2 << 30
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_LOOPBACK = ("127.0.0.1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        id: for scripts.
        colour: red: a server will not start or be open to others; yellow: it will be worse.
        text: what was found.
        fix: what to do; empty for green.
    """

    id: str
    colour: Colour
    text: str
    fix: str = ""


def machine(cache: Path) -> Iterator[Finding]:
    """Python, compiler, limits and disk of this machine."""
    version = sys.version_info[:2]
    yield _finding(
        "python",
        version in ((3, 11), (3, 12)),
        f"Python {version[0]}.{version[1]}",
        "use Python 3.11 or 3.12",
    )
    compiler = shutil.which("gcc") or shutil.which("cc")
    yield _finding(
        "gcc",
        compiler is not None,
        compiler or "no gcc: kernels are not compiled, torch computes on CPUs more slowly",
        "install gcc and libc6-dev",
        worse="yellow",
    )
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield _finding(
        "nofile",
        soft == resource.RLIM_INFINITY or soft >= _MIN_FILES,
        f"{soft} open files",
        f"ulimit -n {_MIN_FILES * 16}: each connection takes one",
        worse="yellow",
    )
    yield from _places(cache)


def _places(cache: Path) -> Iterator[Finding]:
    shm = Path("/dev/shm")
    if shm.is_dir():
        free = shutil.disk_usage(shm).free
        yield _finding(
            "shm",
            free >= _MIN_SHM_BYTES,
            f"{free >> 20} MiB free in {shm}",
            "give the container a larger one (docker run --shm-size 8g): Ray's object store",
            worse="yellow",
        )
    place = next(path for path in (cache, *cache.parents) if path.exists())
    free = shutil.disk_usage(place).free
    yield _finding(
        "disk",
        free >= _MIN_DISK_BYTES,
        f"{free >> 20} MiB free for {cache}",
        "free some, or set cache_folder: models are converted there",
    )
    yield _finding(
        "cache",
        os.access(place, os.W_OK),
        f"{cache} can{'' if os.access(place, os.W_OK) else 'not'} be written",
        "set XDG_CACHE_HOME, or cache_folder, to a folder that can",
    )


def environment(variables: Mapping[str, str]) -> Iterator[Finding]:
    """Variables that make servers slow, or their clients ask somebody else."""
    lower = {name.lower(): value for name, value in variables.items()}
    has_proxy = any(lower.get(name) for name in _PROXIES)
    exempt = lower.get("no_proxy", "")
    yield _finding(
        "proxy",
        not has_proxy or exempt == "*" or any(host in exempt for host in _LOOPBACK),
        "an HTTP proxy is set, for loopback addresses as well" if has_proxy else "no HTTP proxy",
        "export NO_PROXY=127.0.0.1,localhost: clients would ask the proxy for this machine",
        worse="yellow",
    )
    threads = variables.get("OMP_NUM_THREADS", "1")
    yield _finding(
        "threads",
        threads == "1",
        f"OMP_NUM_THREADS={threads}",
        "unset OMP_NUM_THREADS; num_threads in the file is what counts",
        worse="yellow",
    )
    mode = variables.get("RAY_AUTH_MODE", "token")
    yield _finding(
        "ray_auth",
        mode == "token",
        f"RAY_AUTH_MODE={mode}",
        "unset RAY_AUTH_MODE: whoever reaches Ray's ports can run code",
        worse="yellow",
    )


def of_config(config: AppConfig, host: str) -> Iterator[Finding]:
    """What the options of an application mean on this machine."""
    cores = len(psutil.Process().cpu_affinity() or [0]) if sys.platform == "linux" else 1
    yield _finding(
        "num_threads",
        config.num_threads <= cores,
        f"num_threads is {config.num_threads}, and there are {cores} cores",
        f"set num_threads to {cores} at most: threads that wait for each other compute nothing",
        worse="yellow",
    )
    is_open = host not in (*_LOOPBACK, "::1") and config.api_keys_file is None
    yield _finding(
        "open_to_all",
        not is_open,
        f"http_options.host is {host}" + (" and there are no keys" if is_open else ""),
        "set api_keys_file, or host to 127.0.0.1: everyone who reaches the port is served",
        worse="yellow",
    )
    keys = {"api_keys_file": config.api_keys_file, "operator_keys_file": config.operator_keys_file}
    for name, path in keys.items():
        if path is not None:
            yield _key_file(name, path.expanduser())


def _key_file(name: str, path: Path) -> Finding:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return Finding(id=name, colour="red", text=f"{path}: {error.strerror}", fix=f"set {name}")
    return _finding(
        name,
        not mode & (stat.S_IRWXG | stat.S_IRWXO),
        f"{path} has mode {stat.S_IMODE(mode):o}",
        f"chmod 600 {path}: others can read the keys",
        worse="yellow",
    )


def gpus(num_needed: int = 0) -> Iterator[Finding]:
    """NVIDIA's driver, where there are devices.

    Args:
        num_needed: GPUs that the configuration asks for.
    """
    num_found = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if num_found < num_needed:
        yield Finding(
            id="gpu",
            colour="red",
            text=f"{num_needed} GPU are asked for, {num_found} found",
            fix="give a container its GPUs (docker run --gpus all), lower tensor_parallel_size, "
            "or set device: cpu",
        )
    if not num_found:
        if not num_needed:
            yield Finding(id="gpu", colour="green", text="no NVIDIA GPU; the CPU computes")
        return
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding(
            id="gpu",
            colour="red",
            text=f"there are GPUs, and nvidia-smi fails: {error}",
            fix="install NVIDIA's driver 580 or newer, or set device: cpu",
        )
        return
    yield Finding(id="gpu", colour="green", text="; ".join(done.stdout.split("\n")[:-1]))


def _finding(
    id: str, is_good: bool, text: str, fix: str, *, worse: Literal["yellow", "red"] = "red"
) -> Finding:
    return Finding(id=id, colour="green" if is_good else worse, text=text, fix=fix * (not is_good))


def worst(findings: Sequence[Finding]) -> Colour:
    """The worst colour among findings."""
    colours: tuple[Colour, ...] = ("red", "yellow")
    return next((c for c in colours if any(each.colour == c for each in findings)), "green")
