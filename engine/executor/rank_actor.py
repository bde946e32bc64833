"""The process of one rank: loads a worker and executes the plans that come through a channel.

Three threads take part: one of Ray for the calls, one that holds the model and enqueues plans, one
that waits for results and answers.
"""

import gc
import importlib
import logging
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import ray
from numpy.typing import NDArray
from ray import ObjectRef
from ray.exceptions import RayError

from engine.config import EngineConfig
from engine.executor.channel import Listener
from engine.executor.process_id import ProcessId, own_process_id
from engine.executor.process_log import log_from_actor
from engine.executor.rank_loop import serve_plans
from engine.executor.rank_worker import RankWorker
from engine.executor.tcp_channel import TcpListener, open_port
from engine.executor.visible_gpus import GivenGpus, SeenGpus, given_gpus, see_gpus
from engine.types import Capacity

logger = logging.getLogger(__name__)

ACCEPT_TIMEOUT_S = 60.0
_ARENA_TIMEOUT_S = 60.0

# swap space of a rank: a list of one object, which is written in place, or bytes of the rank's own
SwapPlace = Sequence[ObjectRef[Any]] | int


class Place(NamedTuple):
    """Where a process runs.

    Attributes:
        node: Ray's name of the node.
        address: of the node, in the network of the cluster.
    """

    node: str
    address: str


class LoadProgress(NamedTuple):
    """How far a rank's weights are.

    Attributes:
        done_bytes, total_bytes: of weights; a total of 0 is not known yet.
        took_s: seconds from the first byte until all were there; None before.
    """

    done_bytes: int = 0
    total_bytes: int = 0
    took_s: float | None = None


class RankActor:
    """A Ray actor that hosts one worker. Everything that touches the model runs on one thread.

    It needs at least three concurrent calls: `load`, `load_progress` and `ping` overlap. A gang
    that starts calls `process_id`, `load`, `listen` or `listen_on_node`, and `serve`, in this
    order. One of several GPUs calls `given_gpus` and `see_gpus` before `load`; one that may have
    ranks on several nodes `place`, `open_rendezvous` or `join_rendezvous`, and `locate_by`, as it
    needs them.
    """

    def __init__(
        self, config: EngineConfig, rank: int, rendezvous: str | None, factory: str
    ) -> None:
        """Note which worker to load.

        Args:
            rendezvous: where the ranks find each other; None for a single rank, or until one is
                opened or joined.
            factory: "module:function", called like `engine.worker.worker.load_worker`.
        """
        log_from_actor(f"rank {rank}")
        self._config = config
        self._rank = rank
        self._rendezvous = rendezvous
        self._factory = factory
        self._worker: RankWorker | None = None
        self._listener: Listener | TcpListener | None = None
        self._rendezvous_server: socket.socket | None = None
        self._locate: Callable[[], Path] | None = None
        self._model_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
        self._progress = LoadProgress()
        self._began_s = 0.0
        self._device_index: int | None = None

    def load(self, arena: SwapPlace | None = None) -> Capacity:
        """Load the weights and make the KV pool.

        Args:
            arena: memory for the swap space, or its size. Without this the worker allocates what
                the configuration says.
        """
        self._worker = self._model_thread.submit(self._make_worker, arena).result()
        return self._worker.capacity

    def load_progress(self) -> LoadProgress:
        """How far the weights are; `load` goes on behind them."""
        return self._progress

    def ping(self) -> None:
        """Answer as long as the process lives."""

    def place(self) -> Place:
        """Where this process runs."""
        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        return Place(ray.get_runtime_context().get_node_id(), address)

    def given_gpus(self) -> GivenGpus:
        """The GPUs that Ray gave to this process."""
        return given_gpus()

    def see_gpus(self, seen: SeenGpus) -> None:
        """Have `load` see these GPUs, and take the one with the rank's index."""
        see_gpus(seen.ids)
        self._device_index = seen.own

    def locate_by(self, locate: Callable[[], Path]) -> None:
        """Have `load` find the model on this node, which is another one than the replica's."""
        self._locate = locate

    def open_rendezvous(self, address: str, name: str) -> str:
        """Listen for the other ranks on a free port of an address of this node.

        Returns:
            The URL for `join_rendezvous` of the others; this rank keeps what they write there.
        """
        self._rendezvous_server, port_url = open_port(address)
        url = f"{port_url}/{name}"
        self._rendezvous = f"{url}?listener={self._rendezvous_server.fileno()}"
        return url

    def join_rendezvous(self, rendezvous: str) -> None:
        """Note where another rank listens."""
        self._rendezvous = rendezvous

    def process_id(self) -> ProcessId:
        """The process that this actor is."""
        return own_process_id()

    def listen(self, path: str) -> None:
        """Make the socket file on which the scheduler is expected."""
        self._listener = Listener(path)

    def listen_on_node(self, address: str, secret: bytes) -> str:
        """Open a port on which the scheduler is expected, on another node; returns its URL."""
        self._listener = TcpListener(address, secret)
        return self._listener.url

    def serve(self) -> None:
        """Accept the scheduler and begin to execute its plans."""
        assert self._worker is not None, "load comes first"
        assert self._listener is not None, "listen comes first"
        channel = self._listener.accept(ACCEPT_TIMEOUT_S)
        is_first = self._rank == 0
        self._model_thread.submit(serve_plans, self._worker, channel, is_first=is_first)

    def _make_worker(self, arena: SwapPlace | None) -> RankWorker:
        module, _, function = self._factory.partition(":")
        make = cast("Callable[..., RankWorker]", getattr(importlib.import_module(module), function))
        if self._locate is not None:
            self._config = replace(self._config, model_path=str(self._locate()))
        config = self._config
        options: dict[str, Any] = {}
        if self._device_index is not None:
            options["device_index"] = self._device_index
        if isinstance(arena, int):
            config = config.with_options(swap_bytes=arena)
        elif arena is not None:
            view = _view_of(arena)
            if view is None:
                config = config.with_options(swap_bytes=0)
            else:
                options["swap_view"] = view
        worker = make(
            config,
            rank=self._rank,
            rendezvous=self._rendezvous,
            on_progress=self._note_progress,
            **options,
        )
        # all objects of now live as long as the process: the garbage collector need not visit them
        gc.freeze()
        return worker

    def _note_progress(self, done_bytes: int, total_bytes: int) -> None:
        now_s = time.monotonic()
        if not self._progress.total_bytes:
            self._began_s = now_s
        took_s = now_s - self._began_s if done_bytes >= total_bytes > 0 else None
        self._progress = LoadProgress(done_bytes, total_bytes, took_s)


def _view_of(arena: Sequence[ObjectRef[Any]]) -> NDArray[np.uint8] | None:
    """The memory of an arena; None if it is lost, which costs recomputation only."""
    [ref] = arena
    try:
        view: NDArray[np.uint8] = ray.get(ref, timeout=_ARENA_TIMEOUT_S)
    except RayError as error:
        logger.warning("no_swap_space reason=%s: preempted requests are recomputed", error)
        return None
    return view
