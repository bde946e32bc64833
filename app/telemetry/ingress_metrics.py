"""What an ingress replica measures, from the records of its requests."""

from app.telemetry.ingress_table import (
    CHOICE_OUTPUT_TOKENS,
    E2E_S,
    HTTP_REQUESTS,
    INGRESS_METRICS,
    LONGEST_OUTPUT_TOKENS,
    NORMALIZED_S,
    OUTPUT_TOKENS,
    REQUEST_CHOICES,
    REQUEST_PROMPT_TOKENS,
    REQUESTS_ENDED,
    RESUMES,
    TPOT_S,
    TTFT_S,
)
from app.telemetry.request_record import OUTCOMES, RequestRecord
from engine.runtime.metrics.metric_store import MetricStore


class IngressMetrics:
    """Counts each request once, when its answer is over.

    Attributes:
        store: the values.
    """

    def __init__(self) -> None:
        self.store = MetricStore(INGRESS_METRICS)
        self._routes: set[str] = set()

    def take(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        store = self.store
        store.add(HTTP_REQUESTS, 1, record.route, str(record.code))
        if not record.is_generation:
            return
        self._begin(record.route)
        store.add(REQUESTS_ENDED, 1, record.route, record.outcome)
        store.add(OUTPUT_TOKENS, record.num_output_tokens, record.route)
        store.add(RESUMES, record.num_resumes)
        if record.num_candidates:
            store.observe(REQUEST_PROMPT_TOKENS, record.num_prompt_tokens)
            store.observe(REQUEST_CHOICES, record.num_candidates, 1, record.kind)
        first_s = record.first_token_s
        if first_s is not None:
            self._time(record, first_s)

    def _begin(self, route: str) -> None:
        """Have all outcomes of a route there before the first of most: rates see no birth."""
        if route not in self._routes:
            self._routes.add(route)
            for outcome in OUTCOMES:
                self.store.add(REQUESTS_ENDED, 0, route, outcome)

    def _time(self, record: RequestRecord, first_s: float) -> None:
        observe = self.store.observe
        labels = record.route, "true" if record.is_stream else "false"
        observe(TTFT_S, first_s - record.arrived_s, 1, *labels)
        observe(E2E_S, record.seconds, 1, *labels)
        if record.num_output_tokens:
            observe(NORMALIZED_S, record.seconds / record.num_output_tokens, 1, *labels)
        longest = max((choice.num_tokens for choice in record.choices.values()), default=0)
        observe(LONGEST_OUTPUT_TOKENS, longest)
        for choice in record.choices.values():
            observe(CHOICE_OUTPUT_TOKENS, choice.num_tokens)
            if choice.num_tokens > 1:
                seconds = (choice.last_s - choice.first_s) / (choice.num_tokens - 1)
                observe(TPOT_S, seconds, 1, *labels)
