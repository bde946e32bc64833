"""Alerting rules for Prometheus: what wakes somebody up, and what is looked at by day."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One rule.

    Attributes:
        name: also the heading of its paragraph in docs/observability.md.
        expression: of PromQL; fires where it has a value.
        lasting: how long before it fires.
        pages: whether somebody is to look at once.
        summary: what is the case.
        todo: what to do.
    """

    name: str
    expression: str
    lasting: str
    pages: bool = False
    summary: str
    todo: str


_ERROR, _REFUSED, _SLOW = (
    f'{{outcome="{outcome}"}}' for outcome in ("error", "overloaded", "slow")
)
_COMPUTED = '{source="computed"}'


def _by_model(name: str, labels: str = "") -> str:
    return f"sum by (model_name) (rate(pagoda_{name}{labels}[5m]))"


def _p99(name: str) -> str:
    total = f"sum by (model_name, le) (rate(pagoda_{name}_bucket[5m]))"
    return f"histogram_quantile(0.99, {total})"


ALERTS: tuple[Alert, ...] = (
    Alert(
        name="PagodaAbsent",
        expression="absent(pagoda_info)",
        lasting="5m",
        pages=True,
        summary="no ingress replica has been scraped for minutes",
        todo="The server does not run, or /metrics refuses Prometheus: `up` says which.",
    ),
    Alert(
        name="PagodaStalled",
        expression="max by (model_name, replica) (pagoda_step_age_seconds) > 60",
        lasting="0m",
        pages=True,
        summary="a replica has open requests and has made no step for a minute",
        todo="The gang should have been replaced after `step_deadline_s`: look for `gang_lost`.",
    ),
    Alert(
        name="PagodaNotReady",
        # engine replicas that are gone or starting say nothing at all
        expression="(sum by (model_name) (pagoda_ready) or 0 * max by (model_name) (pagoda_info)) "
        "== 0",
        lasting="2m",
        pages=True,
        summary="no replica takes requests",
        todo="Look for `gang_start_failed` and `replica_lost`; their reason says what to change.",
    ),
    Alert(
        name="PagodaGangLost",
        expression="sum by (model_name) (increase(pagoda_gang_lost_total[15m])) > 2",
        lasting="0m",
        pages=True,
        summary="scheduler or workers were started again more than twice in 15 minutes",
        todo="`gang_lost` in the log has the reason: memory, a device, or a request that crashes.",
    ),
    Alert(
        name="PagodaErrors",
        expression=f"{_by_model('requests_total', _ERROR)} > 0.01 * {_by_model('requests_total')}",
        lasting="5m",
        summary="more than 1 % of the requests fail",
        todo="`internal_error` in the log has a traceback; 503 means that no engine could answer.",
    ),
    Alert(
        name="PagodaSlowFirstToken",
        expression=f"{_p99('time_to_first_token_seconds')} > 10",
        lasting="10m",
        summary="one request in a hundred waits 10 s for its first token",
        todo="With a queue: add replicas. Without: lower the length of prompts or raise "
        "`max_num_batched_tokens`.",
    ),
    Alert(
        name="PagodaSlowTokens",
        expression=f"{_p99('inter_token_seconds')} > 0.5",
        lasting="10m",
        summary="one gap between tokens in a hundred is above half a second",
        todo="Set `inter_token_latency_ms`, or lower `max_num_batched_tokens`.",
    ),
    Alert(
        name="PagodaQueueAge",
        expression='max by (model_name) (pagoda_oldest_seconds{state="waiting"}) > 10',
        lasting="2m",
        summary="a request has waited for more than 10 s",
        todo="Add replicas, or let Serve do so: see replicas that follow the load.",
    ),
    Alert(
        name="PagodaThrashing",
        expression=f"{_by_model('recomputed_tokens_total')} > 0.2 * "
        f"({_by_model('recomputed_tokens_total')} + "
        f"{_by_model('prompt_tokens_total', _COMPUTED)})",
        lasting="10m",
        summary="more than a fifth of the prefilled tokens were computed before",
        todo="Give the KV cache more memory or swap space, or lower `max_num_seqs`.",
    ),
    Alert(
        name="PagodaKVFull",
        # a mean: each end and each preemption frees some of it for a moment
        expression="max by (model_name) (avg_over_time(pagoda_kv_usage_ratio[5m])) > 0.9 "
        'and on (model_name) sum by (model_name) (pagoda_requests{state="waiting"}) > 0',
        lasting="10m",
        summary="the KV cache is full and requests wait for it",
        todo="Add KV cache or replicas.",
    ),
    Alert(
        name="PagodaRefusing",
        expression=f"{_by_model('requests_total', _REFUSED)} > "
        f"0.05 * {_by_model('requests_total')}",
        lasting="5m",
        summary="more than 5 % of the requests are refused as too many",
        todo="Add replicas, or raise `max_num_waiting` if clients may wait longer.",
    ),
    Alert(
        name="PagodaSlowClients",
        expression=f"{_by_model('requests_total', _SLOW)} > 0.01 * {_by_model('requests_total')}",
        lasting="5m",
        summary="more than 1 % of the requests end because their clients do not read the answers",
        todo="Look at what is between clients and the server; `deadlines.write_s` may be longer.",
    ),
    Alert(
        name="PagodaIngressLost",
        expression="sum by (model_name) (increase(pagoda_client_lost_total[15m])) > 0",
        lasting="0m",
        summary="an ingress was given up with requests open: it has died, or hung for 30 s",
        todo="Look for its end in Serve's log, and at the lag of event loops; add ingresses.",
    ),
    Alert(
        name="PagodaScrapeIncomplete",
        expression="max by (model_name, role) (pagoda_scrape_missing_replicas) > 0",
        lasting="5m",
        summary="replicas do not answer for their metrics",
        todo="They hang or are starting; the log names them, and in a cluster `serve status`.",
    ),
    Alert(
        name="PagodaTelemetryLost",
        expression="sum by (model_name) (increase(pagoda_spans_dropped_total[15m])) > 0",
        lasting="0m",
        summary="spans could not be handed on",
        todo="Look at the collector that `tracing.endpoint` names.",
    ),
)


def rules() -> dict[str, Any]:
    """Return the file of rules, as Prometheus reads it."""
    return {
        "groups": [
            {
                "name": "pagoda",
                "rules": [
                    {
                        "alert": alert.name,
                        "expr": alert.expression,
                        "for": alert.lasting,
                        "labels": {"severity": "page" if alert.pages else "ticket"},
                        "annotations": {"summary": alert.summary, "description": alert.todo},
                    }
                    for alert in ALERTS
                ],
            }
        ]
    }
