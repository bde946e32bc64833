"""What a server holds: processes, KV blocks, objects in Ray's store. A fault must leave no more."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

from load_tests.bench.startup.process_tree import role_of
from load_tests.bench.startup.server_process import ServerProcess
from load_tests.faults.victims import command_line

_ENGINE = "SERVE_REPLICA::pagoda#Engine#"
_STORE = "object_store_memory"
_GCS_ADDRESS = re.compile(r"--gcs-address=(\S+)")
# Ray keeps some workers at hand and ends others, as it likes
_COME_AND_GO = ("idle worker", "ended")
_PERIOD_S = 0.25
# what Serve keeps of replicas that it starts; an arena of the swap space is larger
_MANY_BYTES = 4 << 20
_ANSWER_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """What is held at one moment.

    Attributes:
        roles: how many processes have each role.
        replicas: engine replicas that answer and serve.
        used_tokens: slots of the KV pools that requests hold.
        object_bytes: in the object stores of all nodes.
    """

    roles: dict[str, int]
    replicas: int = 0
    used_tokens: int = 0
    object_bytes: int = 0

    def differences(self, other: "Holdings") -> tuple[str, ...]:
        """In words, what another one has more or less of."""
        names = sorted({*self.roles, *other.roles})
        counts = [(name, self.roles.get(name, 0), other.roles.get(name, 0)) for name in names]
        counts += [
            ("engine replicas", self.replicas, other.replicas),
            ("KV slots in use", self.used_tokens, other.used_tokens),
        ]
        if abs(other.object_bytes - self.object_bytes) > _MANY_BYTES:
            counts.append(("bytes of objects", self.object_bytes, other.object_bytes))
        return tuple(f"{name}: {now} for {then}" for name, then, now in counts if now != then)


class Holder:
    """Looks at one server: at its processes from outside, and at Ray as one more driver."""

    def __init__(self, server: ServerProcess) -> None:
        """Connect to the Ray of the server.

        Raises:
            ValueError: if it has none.
        """
        self._server = server
        found = map(_GCS_ADDRESS.search, map(command_line, server.processes()))
        address = next((match[1] for match in found if match), None)
        if address is None:
            raise ValueError("the server runs without Ray")
        ray.init(address=address, namespace="serve", log_to_driver=False, configure_logging=False)

    def close(self) -> None:
        """Leave the cluster."""
        ray.shutdown()

    async def settled(self, limit_s: float, num_replicas: int) -> Holdings:
        """What is held once every replica runs and two looks in a row find the same.

        Raises:
            ValueError: if that takes too long.
        """
        last, end_s = await self._look(), time.perf_counter() + limit_s
        while time.perf_counter() < end_s:
            await asyncio.sleep(4 * _PERIOD_S)
            now = await self._look()
            if not now.differences(last) and now.replicas == num_replicas and not now.used_tokens:
                return now
            last = now
        raise ValueError(f"the server does not settle: it holds {last}")

    async def until_back(self, before: Holdings, limit_s: float) -> tuple[str, ...]:
        """Wait until as much is held as before; after `limit_s` return what differs."""
        end_s = time.perf_counter() + limit_s
        while True:
            roles = Holdings(roles=_count_roles(self._server.processes()))
            # Ray is asked only once nothing else can be seen
            if roles.roles == before.roles:
                left = before.differences(await self._look())
            else:
                left = Holdings(roles=before.roles).differences(roles)
            if not left or time.perf_counter() > end_s:
                return left
            await asyncio.sleep(_PERIOD_S)

    async def _look(self) -> Holdings:
        return await asyncio.to_thread(self._look_now)

    def _look_now(self) -> Holdings:
        loads = list(filter(None, map(_load_of, _engine_names())))
        total: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
        serving = [load for load in loads if not load["is_unready"]]
        return Holdings(
            roles=_count_roles(self._server.processes()),
            replicas=len(serving),
            used_tokens=sum(load["total_tokens"] - load["free_tokens"] for load in serving),
            object_bytes=int(total.get(_STORE, 0.0) - free.get(_STORE, 0.0)),
        )


def _count_roles(processes: Sequence[psutil.Process]) -> dict[str, int]:
    roles = Counter(role_of(command_line(process)) for process in processes)
    return {role: count for role, count in sorted(roles.items()) if role not in _COME_AND_GO}


def _engine_names() -> list[str]:
    names = (actor["name"] for actor in list_named_actors(all_namespaces=True))
    return [name for name in names if name.startswith(_ENGINE)]


def _load_of(name: str) -> dict[str, Any] | None:
    """What an engine replica reports for routing; None if it does not answer."""
    try:
        actor: Any = ray.get_actor(name)
        load: Any = ray.get(actor.record_routing_stats.remote(), timeout=_ANSWER_S)
    except (RayError, ValueError):
        return None
    return dict(load) if load else None
