"""Workers without weights: hashes instead of keys and values, faults by special tokens."""

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.config import Device, EngineConfig, ModelConfig
from engine.errors import ConfigError
from engine.types import Capacity, StepPlan, StepResult
from tests.fakes.symbolic_executor import SymbolicExecutor, SymbolicModel, extend_hash

Progress = Callable[[int, int], None]

VOCAB_SIZE = 1000
BLOCK_SIZE = 4
CRASH, FAIL, HANG = 1001, 1002, 1003
STEP_S = 0.005
LONG_STEP_S = 0.05


class ScriptedModel(SymbolicModel):
    """The same in every process: no hash of text takes part."""

    def __init__(self) -> None:
        super().__init__(VOCAB_SIZE)

    def sample(self, prefix_hash: int, seed: int) -> int:
        return (prefix_hash + 7 * seed) % VOCAB_SIZE

    def candidates(self, prefix_hash: int, count: int) -> list[tuple[int, float]]:
        tokens = range(prefix_hash % 7, VOCAB_SIZE, 11)
        scored = [(token, -1 - (hash((prefix_hash, token)) % 4096) / 512) for token in tokens]
        scored.sort(key=lambda pair: -pair[1])
        return scored[:count]


def continuation(prompt: list[int], count: int, choice: int = 0) -> list[int]:
    """The tokens that the workers here generate after a prompt, for seed 0."""
    prefix_hash, model = 0, ScriptedModel()
    for token in prompt:
        prefix_hash = extend_hash(prefix_hash, token)
    tokens = []
    for _ in range(count):
        tokens.append(model.sample(prefix_hash, choice))
        prefix_hash = extend_hash(prefix_hash, tokens[-1])
    return tokens


def engine_config(
    *,
    num_blocks: int = 64,
    num_swap_blocks: int = 0,
    max_num_waiting: int = 1024,
    ranks: int = 2,
    device: Device = "cpu",
    pinned_prefix_share: float = 0.0,
) -> EngineConfig:
    """A small engine for scripted workers."""
    model = ModelConfig(
        architecture="scripted",
        vocab_size=VOCAB_SIZE,
        hidden_size=8,
        intermediate_size=8,
        num_layers=1,
        num_heads=2,
        num_kv_heads=2,
        head_dim=4,
        max_position=256,
        norm_eps=1e-5,
    )
    return EngineConfig.from_options(
        model_path="",
        model=model,
        dtype="float32",
        device=device,
        tensor_parallel_size=ranks,
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        swap_bytes=num_swap_blocks * BLOCK_SIZE * model.kv_bytes_per_token(4, ranks),
        max_num_seqs=16,
        # the pool is small, and many are to wait for it
        max_waiting_tokens=1 << 20,
        max_num_batched_tokens=64,
        max_model_len=200,
        max_num_waiting=max_num_waiting,
        pinned_prefix_share=pinned_prefix_share,
    )


@dataclass(frozen=True)
class Done:
    """A step whose result is there."""

    step_result: StepResult

    def result(self) -> StepResult:
        return self.step_result


class ScriptedWorker:
    """Checks every read of the KV pool by hash; see `SymbolicExecutor`.

    Its swap space is its own, wherever there is memory for one.
    """

    def __init__(self, config: EngineConfig, *, step_s: float) -> None:
        token_bytes = config.model.kv_bytes_per_token(4, config.tensor_parallel_size)
        self.capacity = Capacity(
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            num_rows=config.max_num_seqs,
            num_swap_blocks=(config.swap_bytes or 0) // (config.block_size * token_bytes),
        )
        self._step_s = step_s
        self._executor = SymbolicExecutor(self.capacity, ScriptedModel())

    def enqueue(self, plan: StepPlan) -> Done:
        if CRASH in plan.prefill_tokens:
            os._exit(1)
        if FAIL in plan.prefill_tokens:
            raise ValueError("scripted failure")
        if HANG in plan.prefill_tokens:
            threading.Event().wait()
        time.sleep(self._step_s)
        self._executor.submit(plan)
        return Done(self._executor.collect())

    def close(self) -> None:
        pass


def load_worker(
    config: EngineConfig, *, rank: int, rendezvous: str | None, on_progress: Progress, **_: object
) -> ScriptedWorker:
    """A worker factory, see `GangOptions`."""
    assert (rendezvous is None) == (config.tensor_parallel_size == 1)
    return ScriptedWorker(config, step_s=0.0)


def load_slow_worker(
    config: EngineConfig, *, rank: int, rendezvous: str | None, on_progress: Progress, **_: object
) -> ScriptedWorker:
    """A worker that takes its time for each step, so that requests can be caught in flight."""
    return ScriptedWorker(config, step_s=STEP_S)


def load_and_die(
    config: EngineConfig, *, rank: int, rendezvous: str | None, on_progress: Progress, **_: object
) -> ScriptedWorker:
    """A factory whose last rank is killed while it loads."""
    if rank == config.tensor_parallel_size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return ScriptedWorker(config, step_s=0.0)


def load_at_second_try(
    config: EngineConfig, *, rank: int, rendezvous: str | None, on_progress: Progress, **_: object
) -> ScriptedWorker:
    """A factory whose last rank fails once: a file in the model's folder says that it has."""
    tried = Path(config.model_path) / "tried"
    if rank == config.tensor_parallel_size - 1 and not tried.exists():
        tried.touch()
        raise MemoryError(f"no memory for rank {rank}")
    return ScriptedWorker(config, step_s=0.0)


def load_slowest_worker(
    config: EngineConfig, *, rank: int, rendezvous: str | None, on_progress: Progress
) -> ScriptedWorker:
    """A worker whose longest requests take longer than a lease."""
    return ScriptedWorker(config, step_s=LONG_STEP_S)


def load_nothing(
    config: EngineConfig, *, rank: int, rendezvous: str | None, on_progress: Progress, **_: object
) -> ScriptedWorker:
    """A factory that fails on the last rank."""
    if rank == config.tensor_parallel_size - 1:
        raise ConfigError("no weights here")
    return ScriptedWorker(config, step_s=0.0)
