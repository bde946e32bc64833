"""Writes down when the tokens of requests come out of an engine."""

from dataclasses import replace
from typing import Any, Generic, TypeVar

from engine.types import FinishReason, StepOutput
from load_tests.traffic.latencies import Served

S = TypeVar("S", bound=Served)


class ServedLog(Generic[S]):
    """What has become of each request, by its id.

    Attributes:
        served: of every request that was added.
    """

    def __init__(self) -> None:
        self.served: dict[int, S] = {}
        self._num_open: dict[int, int] = {}

    @property
    def num_open(self) -> int:
        """Requests of which a sequence has not ended."""
        return len(self._num_open)

    def add(self, request_id: int, served: S, num_choices: int = 1) -> None:
        """Open a request that ends with the last of so many sequences."""
        self.served[request_id] = served
        self._num_open[request_id] = num_choices

    def take(self, output: StepOutput, now_s: float) -> list[int]:
        """Note first tokens, and return the requests that have ended, for `finish`."""
        ended = []
        for request_id, reason in zip(output.request_ids, output.finish_reasons, strict=True):
            if self.served[request_id].first_token_s is None:
                self._note(request_id, first_token_s=now_s)
            if reason != FinishReason.NONE:
                self._num_open[request_id] -= 1
                if not self._num_open[request_id]:
                    del self._num_open[request_id]
                    ended.append(request_id)
        return ended

    def finish(self, request_ids: list[int], now_s: float) -> None:
        """Note that requests were answered."""
        for request_id in request_ids:
            self._note(request_id, finish_s=now_s)

    def _note(self, request_id: int, **times_s: Any) -> None:
        self.served[request_id] = replace(self.served[request_id], **times_s)
