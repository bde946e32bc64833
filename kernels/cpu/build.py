"""Compiles the C kernels at first use and loads them."""

import ctypes
import fcntl
import hashlib
import logging
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

logger = logging.getLogger(__name__)

_SOURCE = Path(__file__).parent / "source"
# reductions may be reordered; no kernel compares or tests for NaN and infinity
_FLAGS = [
    *("-std=gnu11", "-O3", "-march=native", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"),
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros"),
    *("-fassociative-math", "-ffinite-math-only"),
]
_TIMEOUT_S = 120


def load_library(
    definitions: tuple[str, ...], *, compiler: str = "gcc", cache: Path | None = None
) -> ctypes.CDLL | None:
    """Load the kernels, compiled for this CPU by an earlier or by this call.

    Args:
        definitions: macros to define, for example "ELEMENT_BF16".
        compiler: name or path of a C compiler with gcc's options.
        cache: folder of compiled libraries; by default one of this user's.

    Returns:
        The library, or None after one warning when it cannot be compiled or loaded: no compiler,
        a failing one, no home folder, no place to write.
    """
    try:
        return ctypes.CDLL(str(_compile(definitions, compiler, cache or _user_cache())))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or error
        logger.warning("cpu_kernels_unavailable instead=torch reason=%s", detail)
        return None


def _compile(definitions: tuple[str, ...], compiler: str, cache: Path) -> Path:
    """Return the library's path; processes that start together compile it once."""
    executable = shutil.which(compiler)
    if executable is None:
        raise FileNotFoundError(f"no C compiler {compiler!r}")
    sources = sorted(_SOURCE.glob("*.[ch]"))
    arguments = [*_FLAGS, *(f"-D{name}" for name in definitions)]
    target = cache / f"kernels-{_fingerprint(sources, [executable, *arguments])}.so"
    if target.exists():
        return target
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            units = [str(path) for path in sources if path.suffix == ".c"]
            _run([executable, *arguments, *units, "-lm"], target)
    return target


def _run(command: list[str], target: Path) -> None:
    """Compile to a temporary file, then move it, so that no process loads half a library."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        output = Path(folder) / target.name
        subprocess.run(
            [*command, "-o", str(output)],
            check=True,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
        output.replace(target)
    logger.info("cpu_kernels_compiled: path=%s", target)


def _fingerprint(sources: list[Path], command: list[str]) -> str:
    """Hash what the library depends on: source, command and CPU."""
    digest = hashlib.sha256("\0".join([*command, _cpu()]).encode())
    for path in sources:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:20]


def _cpu() -> str:
    """Model and instruction sets of this CPU: a cache folder may be shared by several machines."""
    wanted = ("model name", "flags", "Features", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def _user_cache() -> Path:
    """Folder that only this user can write: a library in a shared one could come from anybody."""
    return Path("~/.cache/pagoda").expanduser()
