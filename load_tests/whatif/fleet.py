"""Replays a trace on replicas between which requests are routed as they are when served."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from engine.runtime.routing.routing_table import RoutingTable
from engine.types import Request, int32
from load_tests.simulator.replay import length_request
from load_tests.simulator.simulated_executor import OUTPUT_TOKEN, PROMPT_TOKEN
from load_tests.traffic.schedule import TracedRequest
from load_tests.traffic.trace import Trace
from load_tests.whatif.replica import Replica, ReplicaSetup, ServedByReplica

# the age of the loads by which requests are routed; `request_routing_stats_period_s`
ROUTING_PERIOD_S = 1.0

Routing = Literal["prefix", "two_choices"]


@dataclass(frozen=True, slots=True)
class ReplayedTrace:
    """A trace that was replayed.

    Attributes:
        served: in the order of the trace.
        replicas: after the last request.
    """

    served: tuple[ServedByReplica, ...]
    replicas: tuple[Replica, ...]

    @property
    def done(self) -> list[ServedByReplica]:
        """Those that were not refused."""
        return [served for served in self.served if not served.is_refused]


def replay_trace(
    setup: ReplicaSetup,
    trace: Trace,
    *,
    num_replicas: int = 1,
    seed: int = 0,
    routing: Routing = "prefix",
) -> ReplayedTrace:
    """Send every request at its time and serve all.

    Args:
        setup: of each replica.
        seed: of the router's choices.
        routing: "prefix" as when served, or "two_choices", which looks at load only.

    Raises:
        ConfigError: if a step lies beyond what was measured.
    """
    replicas = [Replica(setup) for _ in range(num_replicas)]
    router = _Router(replicas, seed, routing)
    prompts = _Prompts()
    placed: list[Replica] = []
    for index, traced in enumerate(trace.requests):
        for replica in replicas:
            replica.advance(traced.due_s)
        request = length_request(
            index, traced, prompts.make(traced), n=traced.n, beam_width=traced.beam_width
        )
        placed.append(router.choose(traced.due_s, request))
        placed[-1].submit(index, traced, request)
    for replica in replicas:
        replica.advance(float("inf"))
    served = tuple(replica.served[index] for index, replica in enumerate(placed))
    return ReplayedTrace(served, tuple(replicas))


class _Router:
    """Chooses by what the replicas last reported: one ingress."""

    def __init__(self, replicas: Sequence[Replica], seed: int, routing: Routing) -> None:
        self._replicas = {str(index): replica for index, replica in enumerate(replicas)}
        self._random = Random(f"{seed} routing")
        self._routing = routing
        self._table = RoutingTable(self._random)
        self._next_report_s = 0.0
        self._stats: dict[str, dict[str, Any]] = {}

    def choose(self, now_s: float, request: Request) -> Replica:
        if now_s >= self._next_report_s:
            self._next_report_s = now_s + ROUTING_PERIOD_S
            self._stats = {tag: it.report().to_stats() for tag, it in self._replicas.items()}
        asked = request if self._routing == "prefix" else None
        # between two arrivals that are far from each other reports would have come: none is old
        return self._replicas[self._table.choose(asked, self._stats, self._next_report_s)[0]]


class _Prompts:
    """Token ids that are equal wherever the hashes of a trace are; nothing else is shared."""

    def __init__(self) -> None:
        self._tokens: dict[tuple[int, int], int] = {}
        self._next_token = max(PROMPT_TOKEN, OUTPUT_TOKEN) + 1

    def make(self, traced: TracedRequest) -> "array[int]":
        prompt = int32()
        for hash_id in traced.hash_ids:
            prompt.extend(int32([self._token(traced.hash_block, hash_id)]) * traced.hash_block)
        del prompt[traced.input_len :]
        prompt.extend(int32([self._new_token()]) * (traced.input_len - len(prompt)))
        if traced.beam_width:
            # by which the executor recognises the end of a prompt
            prompt[-1] = PROMPT_TOKEN
        return prompt

    def _token(self, hash_block: int, hash_id: int) -> int:
        key = hash_block, hash_id
        if key not in self._tokens:
            self._tokens[key] = self._new_token()
        return self._tokens[key]

    def _new_token(self) -> int:
        self._next_token += 1
        return self._next_token
