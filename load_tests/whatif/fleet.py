"""Replays a trace on replicas between which requests are routed as they are when served."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from engine.types import int32
from load_tests.simulator.replay import length_request
from load_tests.simulator.simulated_executor import OUTPUT_TOKEN, PROMPT_TOKEN
from load_tests.traffic.schedule import TracedRequest
from load_tests.traffic.trace import Trace
from load_tests.whatif.replica import Replica, ReplicaSetup, ServedByReplica

# the age of the loads by which requests are routed; `request_routing_stats_period_s`
ROUTING_PERIOD_S = 1.0


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
    setup: ReplicaSetup, trace: Trace, *, num_replicas: int = 1, seed: int = 0
) -> ReplayedTrace:
    """Send every request at its time and serve all.

    Args:
        setup: of each replica.
        seed: of the router's choices.

    Raises:
        ConfigError: if a step lies beyond what was measured.
    """
    replicas = [Replica(setup) for _ in range(num_replicas)]
    router = _Router(replicas, seed)
    prompts = _Prompts()
    placed: list[Replica] = []
    for index, traced in enumerate(trace.requests):
        for replica in replicas:
            replica.advance(traced.due_s)
        placed.append(router.choose(traced.due_s))
        request = length_request(
            index, traced, prompts.make(traced), n=traced.n, beam_width=traced.beam_width
        )
        placed[-1].submit(index, traced, request)
    for replica in replicas:
        replica.advance(float("inf"))
    served = tuple(replica.served[index] for index, replica in enumerate(placed))
    return ReplayedTrace(served, tuple(replicas))


class _Router:
    """The less loaded of two random replicas, by what they last reported."""

    def __init__(self, replicas: Sequence[Replica], seed: int) -> None:
        self._replicas = replicas
        self._random = Random(f"{seed} routing")
        self._next_report_s = 0.0
        self._loads: list[tuple[float, float]] = []

    def choose(self, now_s: float) -> Replica:
        if now_s >= self._next_report_s:
            self._next_report_s = now_s + ROUTING_PERIOD_S
            self._loads = [(replica.num_waiting, replica.kv_usage) for replica in self._replicas]
        two = self._random.sample(range(len(self._replicas)), min(2, len(self._replicas)))
        return self._replicas[min(two, key=self._loads.__getitem__)]


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
