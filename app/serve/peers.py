"""Asks all replicas of an application: for metrics, another log level, pinned prefixes."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from app.serve.handle import ask_all, over_grpc
from app.telemetry.telemetry import Gathered
from engine.config import PrefixConfig
from engine.errors import EngineError
from engine.runtime.messages import PINS

logger = logging.getLogger(__name__)

# Prometheus gives up after 10 s
SCRAPE_TIMEOUT_S = 2.0


class Peers:
    """All replicas of the application that an ingress replica is part of."""

    def __init__(self, engine: DeploymentHandle[Any]) -> None:
        context = serve.get_replica_context()
        ingress = serve.get_deployment_handle(context.deployment, context.app_name)
        self._handles = {"engine": over_grpc(engine), "ingress": over_grpc(ingress)}
        # replicas that answered last
        self._num_known = dict.fromkeys(self._handles, 1)

    async def gather(self) -> Gathered:
        """Collect the series of all replicas.

        Serve waits for all replicas of a deployment or none: where one hangs, all are missing.
        """
        answers = await asyncio.gather(*(self._ask(role, "metrics") for role in self._handles))
        gathered = Gathered()
        for role, found in zip(self._handles, answers, strict=True):
            came = [answer for answer in found if not isinstance(answer, BaseException)]
            gathered.replicas.extend(came)
            gathered.num_missing[role] = len(found) - len(came)
            if came:
                self._num_known[role] = len(came)
        return gathered

    async def views(self, first_events: Mapping[str, int]) -> list[bytes]:
        """Ask the engine replicas for a `ReplicaView` each; those that cannot be reached give none.

        Args:
            first_events: see `LiveView.view`, by tag.
        """
        found = await self._ask("engine", "view", first_events)
        return [view for view in found if isinstance(view, bytes)]

    async def set_log_level(self, level: str, ttl_s: float) -> None:
        """Have all replicas log from a level on; those that cannot be reached do not."""
        for role in self._handles:
            await self._ask(role, "set_log_level", level, ttl_s)

    async def _ask(self, role: str, method: str, *args: Any) -> list[Any]:
        """Return an answer, or an error in its place, for each replica."""
        try:
            found: list[Any] = await (
                self._handles[role]
                .broadcast(method, *args)
                .results_async(timeout_s=SCRAPE_TIMEOUT_S, return_exceptions=True)
            )
        except (RayError, RayServeException, TimeoutError) as error:
            logger.debug("no_answer role=%s method=%s error=%r", role, method, error)
            return [error] * self._num_known[role]
        return found


async def pins_of_peers() -> list[PrefixConfig]:
    """Return what the running engine replicas have pinned; nothing if none runs."""
    context = serve.get_replica_context()
    handle = serve.get_deployment_handle(context.deployment, context.app_name)
    try:
        answers = await ask_all(over_grpc(handle), "pins")
    except EngineError as error:
        logger.info("no_pins_of_peers reason=%s", error)
        return []
    return [pin for answer in answers for pin in PINS.decode(answer)]
