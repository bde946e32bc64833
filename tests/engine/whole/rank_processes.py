"""Processes that serve as the ranks of one gang after the other, over gloo, without Ray."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from engine.config import EngineConfig
from engine.executor.channel import Listener, connect
from engine.executor.common_capacity import common_capacity
from engine.executor.gang import GangExecutor
from engine.executor.rank_loop import serve_plans
from engine.worker.graphs.graph_batch import GraphShape
from engine.worker.worker import Worker, load_worker

TIMEOUT_S = 180.0


class RankProcesses:
    """A number of processes, each of which has imported torch once.

    Attributes:
        pids: of the processes.
        num_replays: steps that each rank of the last gang replayed as graphs.
    """

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("forkserver")
        # torch is imported once, and the processes begin as copies
        context.set_forkserver_preload([__name__])
        pipes = [context.Pipe() for _ in range(size)]
        self._orders = [near for near, _ in pipes]
        self._processes = [context.Process(target=_serve, args=(far,)) for _, far in pipes]
        for process, (_, far) in zip(self._processes, pipes, strict=True):
            process.start()
            far.close()
        self.pids = [process.pid or 0 for process in self._processes]
        self._num_gangs = 0
        self.num_replays: list[object] = []

    @contextmanager
    def gang(
        self, config: EngineConfig, folder: Path, load: Callable[..., Worker] = load_worker
    ) -> Iterator[GangExecutor]:
        """Have the first processes load a model and execute plans until the context ends.

        Args:
            load: a function of a module, called like `load_worker`.
        """
        self._num_gangs += 1
        orders = self._orders[: config.tensor_parallel_size]
        paths = [str(folder / f"{self._num_gangs}-{rank}") for rank in range(len(orders))]
        rendezvous = (folder / f"{self._num_gangs}").as_uri()
        for rank, (order, path) in enumerate(zip(orders, paths, strict=True)):
            order.send((load, config, rank, rendezvous, path))
        capacities: list[Any] = [_answer(order) for order in orders]
        channels = [connect(path) for path in paths]
        executor = GangExecutor(
            channels, common_capacity(capacities), run_ahead=2, step_deadline_s=30.0
        )
        try:
            yield executor
        finally:
            executor.close()
        # not reached where the gang failed
        self.num_replays = [_answer(order) for order in orders]

    def freeze(self, rank: int) -> None:
        """Stop a process, which stays connected to the others."""
        os.kill(self.pids[rank], signal.SIGSTOP)

    def kill(self, rank: int) -> None:
        """Kill a process, whose sockets are closed then."""
        self._processes[rank].kill()

    def has_ended(self, rank: int) -> bool:
        """Wait until a rank of the last gang serves it no more."""
        return isinstance(_answer(self._orders[rank]), int)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for order in self._orders:
            order.close()
        for process in self._processes:
            process.join(TIMEOUT_S)
            # one that hangs must not outlive the tests
            process.kill()
            process.join()


def _answer(order: Connection) -> object:
    assert order.poll(TIMEOUT_S), "a rank does not answer"
    answer = order.recv()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _serve(orders: Connection) -> None:
    """Be a rank of every gang that is ordered, until the orders end."""
    while True:
        try:
            load, config, rank, rendezvous, path = orders.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            worker: Worker = load(config, rank=rank, rendezvous=rendezvous)
        except Exception as error:
            orders.send(error)
            continue
        listener = Listener(path)
        orders.send(worker.capacity)
        replayed = _count_replays(worker)
        serve_plans(worker, listener.accept(TIMEOUT_S), is_first=rank == 0)
        orders.send(len(replayed))


def _count_replays(worker: Worker) -> list[GraphShape]:
    """The shapes of the graphs that are replayed from now on."""
    replayed: list[GraphShape] = []
    graphs = worker._runner._graphs
    if graphs is not None:
        replay = graphs.replay

        def note(shape: GraphShape, *args: Any) -> Any:
            replayed.append(shape)
            return replay(shape, *args)

        graphs.replay = note  # type: ignore[assignment]
    return replayed
