"""vLLM's CPU build as one of the systems of `cpu_peers`, in a process of its own."""

import ctypes.util
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from load_tests.bench.peers import vllm_cpu_child

_SCRIPT = Path(vllm_cpu_child.__file__)
# GiB of its KV cache: room for the largest batch of a small model
_CACHE_GIB = 4
# that it may take to end once it has nothing more to do
_END_LIMIT_S = 60.0


class VllmCpu:
    """The installation of vLLM that a Python interpreter has; `close` ends its process.

    Attributes:
        preloaded: libraries that vLLM recommends and that were found: tcmalloc, Intel's OpenMP.
    """

    def __init__(
        self,
        python: Path,
        folder: Path,
        log: Path,
        *,
        threads: int,
        max_model_len: int,
        max_num_seqs: int,
    ) -> None:
        """Start it and wait until the model is loaded.

        Args:
            python: of an environment where vLLM's CPU build is installed.
            folder: of the model.
            log: where what it prints goes.

        Raises:
            ValueError: if it ends before that; the message names the log.
        """
        self.preloaded = preloads(python)
        self._log = log
        self._cpu_s = 0.0
        lengths = ("--max-model-len", str(max_model_len), "--max-num-seqs", str(max_num_seqs))
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [str(python), str(_SCRIPT), "--model", str(folder), *lengths],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                env=_environment(threads, self.preloaded),
            )
        self.name = f"vLLM {self._answer()['version']}"

    def generate(self, prompts: list[list[int]], output_len: int) -> list[list[int]]:
        """Continue all prompts by exactly `output_len` greedy tokens each."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "output_len": output_len}) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        self._cpu_s = answer["cpu_s"]
        outputs: list[list[int]] = answer["outputs"]
        return outputs

    def cpu_s(self) -> float:
        """CPU seconds of its process, up to the end of the last work."""
        return self._cpu_s

    def close(self) -> None:
        """End the process by ending its input: what it has printed gets to its log first."""
        try:
            self._process.communicate(timeout=_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise ValueError(f"vLLM has ended; {self._log} says why")
        answer: dict[str, Any] = json.loads(line)
        return answer


def preloads(python: Path) -> list[str]:
    """Find what vLLM recommends to preload: tcmalloc of the system, OpenMP of its environment."""
    tcmalloc = ctypes.util.find_library("tcmalloc_minimal") or ctypes.util.find_library("tcmalloc")
    # not resolved: the interpreter of an environment is a link to that of the system
    openmp = python.absolute().parent.parent / "lib" / "libiomp5.so"
    return [*([tcmalloc] if tcmalloc else []), *([str(openmp)] if openmp.exists() else [])]


def recommended(threads: int, preloaded: list[str]) -> dict[str, str]:
    """The variables that its documentation recommends, with a number of threads."""
    return {
        "LD_PRELOAD": ":".join(preloaded),
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "0" if threads == 1 else f"0-{threads - 1}",
        "VLLM_CPU_KVCACHE_SPACE": str(_CACHE_GIB),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def _environment(threads: int, preloaded: list[str]) -> dict[str, str]:
    """All variables of its process, which has the engine in it."""
    # paths of this project are none of vLLM's
    rest = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return rest | recommended(threads, preloaded) | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
