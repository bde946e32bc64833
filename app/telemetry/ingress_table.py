"""The metrics of an ingress replica."""

from engine.runtime.metrics.metric import (
    CHOICES,
    FIRST_TOKEN_S,
    HOST_S,
    REQUEST_S,
    TOKEN_S,
    TOKENS,
    Metric,
    counter,
    gauge,
    histogram,
)

HTTP_REQUESTS = counter(
    "http_requests",
    "answers by the template of their route and their status; 499 for a client that went away",
    "route",
    "code",
)
REQUESTS_ENDED = counter(
    "requests",
    "generating requests, once each, by how they ended: stop, length, mixed, abort, disconnect, "
    "slow (its client did not read the answer), refused, overloaded or error",
    "api",
    "outcome",
)
OUTPUT_TOKENS = counter(
    "output_tokens", "completion tokens as answers count them, of all candidates", "api"
)
RESUMES = counter(
    "resumes", "times that a request went on after it had lost its engine, counted at its end"
)
TTFT_S = histogram(
    "time_to_first_token_seconds",
    "from the arrival of a request to its first token, of requests that had one",
    FIRST_TOKEN_S,
    "api",
    "stream",
)
E2E_S = histogram(
    "e2e_seconds", "from the arrival of a request to the end of its answer, of the same requests",
    REQUEST_S, "api", "stream",
)  # fmt: skip
TPOT_S = histogram(
    "time_per_output_token_seconds",
    "mean time between the tokens of a choice with two or more",
    TOKEN_S,
    "api",
    "stream",
)
NORMALIZED_S = histogram(
    "normalized_seconds_per_token",
    "time of a request by its output tokens, the paper's normalized latency",
    TOKEN_S,
    "api",
    "stream",
)
REQUEST_PROMPT_TOKENS = histogram("request_prompt_tokens", "prompt tokens of a request", TOKENS)
CHOICE_OUTPUT_TOKENS = histogram("choice_output_tokens", "tokens of a choice", TOKENS)
LONGEST_OUTPUT_TOKENS = histogram(
    "request_longest_output_tokens", "tokens of the longest choice of a request", TOKENS
)
REQUEST_CHOICES = histogram(
    "request_choices", "candidates of a request, of a beam search beams", CHOICES, "kind"
)
LOOP_LAG_S = histogram(
    "event_loop_lag_seconds", "how late the event loop of an ingress does what is due", HOST_S
)
SPANS_DROPPED = counter("spans_dropped", "spans that could not be handed on in time")
SCRAPE_MISSING = gauge(
    "scrape_missing_replicas", "replicas that did not answer this scrape", "role"
)
INFO = gauge(
    "info",
    "1; what is served, and how",
    "version", "dtype", "device", "tensor_parallel_size", "block_size", "max_model_len",
    "memory_policy",
)  # fmt: skip

INGRESS_METRICS: tuple[Metric, ...] = (
    HTTP_REQUESTS, REQUESTS_ENDED, OUTPUT_TOKENS, RESUMES, TTFT_S, E2E_S, TPOT_S, NORMALIZED_S,
    REQUEST_PROMPT_TOKENS, CHOICE_OUTPUT_TOKENS, LONGEST_OUTPUT_TOKENS, REQUEST_CHOICES, LOOP_LAG_S,
    SPANS_DROPPED, SCRAPE_MISSING, INFO,
)  # fmt: skip
