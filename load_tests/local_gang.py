"""The ranks of an engine as processes of this one, without Ray."""

import logging
import multiprocessing
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.executor.channel import Listener, connect
from engine.executor.common_capacity import common_capacity
from engine.executor.gang import GangExecutor
from engine.executor.rank_loop import serve_plans
from engine.worker.worker import load_worker

_CONNECT_TIMEOUT_S = 60.0
_CLOSE_TIMEOUT_S = 30.0


class LocalGang(GangExecutor):
    """An executor whose ranks end when it is closed, or when this process ends."""

    def __init__(self, config: EngineConfig) -> None:
        """Start all ranks and wait until they have loaded.

        Raises:
            ValueError: if a rank fails, with its reason.
        """
        context = multiprocessing.get_context("spawn")
        # the paths of sockets are short
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-", dir="/tmp")
        folder = Path(self._folder.name)
        paths = [str(folder / f"{rank}") for rank in range(config.tensor_parallel_size)]
        rendezvous = (folder / "rendezvous").as_uri()
        self._processes = []
        answers: list[Connection] = []
        for rank, path in enumerate(paths):
            near, far = context.Pipe()
            arguments = (config, rank, rendezvous, path, far)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            far.close()
            self._processes.append(process)
            answers.append(near)
        try:
            capacity = common_capacity([_capacity(answer) for answer in answers])
            channels = [connect(path) for path in paths]
        except BaseException:
            self._end(0.0)
            raise
        super().__init__(
            channels,
            capacity,
            run_ahead=config.run_ahead,
            step_deadline_s=config.step_deadline_s,
        )

    def close(self) -> None:
        """Disconnect, and wait until the ranks have ended."""
        super().close()
        self._end(_CLOSE_TIMEOUT_S)

    def _end(self, timeout_s: float) -> None:
        for process in self._processes:
            process.join(timeout_s)
            process.kill()
            process.join()
        self._folder.cleanup()


def _capacity(answer: Connection) -> Any:
    """What a rank can hold, or the error that it had."""
    try:
        found = answer.recv()
    except EOFError as error:
        raise ValueError("a rank died while it loaded") from error
    if isinstance(found, str):
        raise ValueError(found)
    return found


def _serve(config: EngineConfig, rank: int, rendezvous: str, path: str, answer: Connection) -> None:
    """Be a rank until the other end of its channel is closed."""
    if rank == 0:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        worker = load_worker(config, rank=rank, rendezvous=rendezvous)
    except Exception as error:
        answer.send(f"rank {rank}: {type(error).__name__}: {error}")
        return
    listener = Listener(path)
    answer.send(worker.capacity)
    serve_plans(worker, listener.accept(_CONNECT_TIMEOUT_S), is_first=rank == 0)
