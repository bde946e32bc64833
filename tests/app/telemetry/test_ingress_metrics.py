from app.telemetry.ingress_metrics import IngressMetrics
from app.telemetry.request_record import OUTCOMES, RequestRecord
from engine.runtime.metrics.metric_store import Series
from engine.types import EventKind
from tests.app.telemetry.records import ended


def taken(*records: RequestRecord) -> dict[tuple[str, ...], Series]:
    metrics = IngressMetrics()
    for record in records:
        metrics.take(record)
    return {(each.name, *each.labels): each for each in metrics.store.series()}


def test_a_generation_is_counted_once_whatever_its_choices() -> None:
    found = taken(ended(2.0))
    route = "/v1/completions"
    assert found["http_requests_total", route, "200"].value == 1
    assert found["requests_total", route, "stop"].value == 1
    assert found["output_tokens_total", route].value == 10
    first = found["time_to_first_token_seconds", route, "true"]
    assert (sum(first.counts), first.value) == (1, 0.25)
    whole = found["e2e_seconds", route, "true"]
    assert (sum(whole.counts), whole.value) == (1, 2.0)
    assert found["normalized_seconds_per_token", route, "true"].value == 0.2
    assert sum(found["choice_output_tokens",].counts) == 2
    longest = found["request_longest_output_tokens",]
    assert (sum(longest.counts), longest.value) == (1, 9)
    # a choice of one token has no time between tokens
    per_token = found["time_per_output_token_seconds", route, "true"]
    assert sum(per_token.counts) == 1
    assert round(per_token.value, 9) == 0.1
    assert found["request_choices", "sample"].value == 2


def test_without_a_token_there_is_no_time_to_it() -> None:
    found = taken(ended(code=400, choices={}, num_candidates=0))
    assert found["requests_total", "/v1/completions", "refused"].value == 1
    assert not [key for key in found if key[0] == "time_to_first_token_seconds"]
    assert sum(found["request_prompt_tokens",].counts) == 0


def test_other_requests_have_a_route_and_a_status_only() -> None:
    found = taken(ended(route="/health", is_generation=False))
    assert found["http_requests_total", "/health", "200"].value == 1
    assert not [key for key in found if key[0] == "requests_total"]


def test_resumes_count_beside_the_request_itself() -> None:
    events = [[(EventKind.QUEUED, 1), (EventKind.QUEUED, 2)]]
    found = taken(ended(events=events), ended())
    assert found["resumes_total",].value == 1
    assert found["requests_total", "/v1/completions", "stop"].value == 2


def test_all_outcomes_of_a_route_are_there_before_the_first_of_most() -> None:
    """A rate does not see a counter's first value: an alert would miss the first errors."""
    found = taken(ended())
    counts = [found["requests_total", "/v1/completions", outcome].value for outcome in OUTCOMES]
    assert counts == [float(outcome == "stop") for outcome in OUTCOMES]
