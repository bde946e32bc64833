"""For each alert, series that fire it and series that come near and do not.

Values are written as promtool reads them: `a+bxn` is a, a + b, ... , n times; `_` is no value.
One value comes each 30 s.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

INTERVAL = "30s"
_E = 'model_name="m", replica="e1"'
_I = 'model_name="m", replica="i1"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is scraped, and when one looks.

    Attributes:
        fires: series by their name and labels.
        quiet: the same, with what is still well.
        at: when the alert fires of the first and not of the second.
        before: when it does not fire yet of the first; empty where it fires at once.
        labels: of the alert, beside its severity.
    """

    fires: dict[str, str]
    quiet: dict[str, str]
    at: str
    before: str = ""
    labels: dict[str, str]


def _requests(outcome: str, gained: float) -> dict[str, str]:
    """100 requests in 30 s, of which some end in a way that they did not before."""
    head = f'pagoda_requests_total{{{_I}, api="/v1/completions", outcome='
    return {
        f'{head}"stop"}}': f"0+{100 - gained}x60",
        f'{head}"{outcome}"}}': f"0x10 0+{gained}x50",
    }


def _slow(name: str, bound: str, next_bound: str, num_slow: float) -> dict[str, str]:
    """1,000 values in 30 s, of which some are above the bound and at most at the next one."""
    head = f"pagoda_{name}_bucket{{{_E}, le="
    return {
        f'{head}"{bound}"}}': f"0+{1000 - num_slow}x60",
        f'{head}"{next_bound}"}}': "0+1000x60",
        f'{head}"+Inf"}}': "0+1000x60",
    }


_MODEL = {"model_name": "m"}
CASES: dict[str, Case] = {
    "PagodaAbsent": Case(
        # the server is gone: what was scraped before ends
        fires={f"pagoda_info{{{_I}}}": "1 1"},
        # one scrape of ten that failed
        quiet={f"pagoda_info{{{_I}}}": "1x10 _ 1x30"},
        at="14m",
        before="9m",
        labels={},
    ),
    "PagodaStalled": Case(
        fires={f"pagoda_step_age_seconds{{{_E}}}": "0 30 61"},
        quiet={f"pagoda_step_age_seconds{{{_E}}}": "0 30 60"},
        at="1m",
        before="30s",
        labels={"model_name": "m", "replica": "e1"},
    ),
    "PagodaNotReady": Case(
        # two replicas say no, later none is left to say anything
        fires={
            f"pagoda_info{{{_I}}}": "1x20",
            f"pagoda_ready{{{_E}}}": "0x3 stale",
            'pagoda_ready{model_name="m", replica="e2"}': "0x3 stale",
        },
        quiet={
            f"pagoda_info{{{_I}}}": "1x20",
            f"pagoda_ready{{{_E}}}": "0x20",
            'pagoda_ready{model_name="m", replica="e2"}': "1x20",
        },
        at="5m",
        before="1m30s",
        labels=_MODEL,
    ),
    "PagodaGangLost": Case(
        fires={f"pagoda_gang_lost_total{{{_E}}}": "0 0 1 1 2 2 3"},
        quiet={f"pagoda_gang_lost_total{{{_E}}}": "0 0 1 1 2 2 2"},
        at="3m",
        before="2m",
        labels=_MODEL,
    ),
    "PagodaErrors": Case(
        fires=_requests("error", 2),
        quiet=_requests("error", 0.5),
        at="16m",
        before="8m",
        labels=_MODEL,
    ),
    "PagodaSlowFirstToken": Case(
        fires=_slow("time_to_first_token_seconds", "10.0", "20.0", 11),
        quiet=_slow("time_to_first_token_seconds", "10.0", "20.0", 9),
        at="15m",
        before="9m",
        labels=_MODEL,
    ),
    "PagodaSlowTokens": Case(
        fires=_slow("inter_token_seconds", "0.5", "0.75", 11),
        quiet=_slow("inter_token_seconds", "0.5", "0.75", 9),
        at="15m",
        before="9m",
        labels=_MODEL,
    ),
    "PagodaQueueAge": Case(
        fires={f'pagoda_oldest_seconds{{{_E}, state="waiting"}}': "0 11x20"},
        # it was old once; what is swapped is another matter
        quiet={
            f'pagoda_oldest_seconds{{{_E}, state="waiting"}}': "0 11 2 9x20",
            f'pagoda_oldest_seconds{{{_E}, state="swapped"}}': "60x20",
        },
        at="4m",
        before="2m",
        labels=_MODEL,
    ),
    "PagodaThrashing": Case(
        fires={
            f"pagoda_recomputed_tokens_total{{{_E}}}": "0+30x60",
            f'pagoda_prompt_tokens_total{{{_E}, source="computed"}}': "0+100x60",
            f'pagoda_prompt_tokens_total{{{_E}, source="cached"}}': "0+1000x60",
        },
        quiet={
            f"pagoda_recomputed_tokens_total{{{_E}}}": "0+20x60",
            f'pagoda_prompt_tokens_total{{{_E}, source="computed"}}': "0+100x60",
            f'pagoda_prompt_tokens_total{{{_E}, source="cached"}}': "0+0x60",
        },
        at="15m",
        before="9m",
        labels=_MODEL,
    ),
    "PagodaKVFull": Case(
        fires={
            # full, but for the moments after a preemption
            f"pagoda_kv_usage_ratio{{{_E}}}": "0.96x24 0.7 0.96x15",
            f'pagoda_requests{{{_E}, state="waiting"}}': "1x40",
        },
        # full, but nobody waits
        quiet={
            f"pagoda_kv_usage_ratio{{{_E}}}": "1x40",
            f'pagoda_requests{{{_E}, state="waiting"}}': "0x40",
        },
        at="11m",
        before="9m",
        labels=_MODEL,
    ),
    "PagodaRefusing": Case(
        fires=_requests("overloaded", 6),
        quiet=_requests("overloaded", 4),
        at="20m",
        before="8m",
        labels=_MODEL,
    ),
    "PagodaSlowClients": Case(
        fires=_requests("slow", 2),
        # those that go away have read what came
        quiet=_requests("slow", 0.9) | _requests("disconnect", 50),
        at="20m",
        before="8m",
        labels=_MODEL,
    ),
    "PagodaIngressLost": Case(
        fires={f'pagoda_client_lost_total{{{_E}, reason="silent"}}': "0 0 1 1"},
        quiet={f'pagoda_client_lost_total{{{_E}, reason="silent"}}': "1 1 1 1"},
        at="1m",
        before="30s",
        labels=_MODEL,
    ),
    "PagodaScrapeIncomplete": Case(
        fires={f'pagoda_scrape_missing_replicas{{{_I}, role="engine"}}': "0 1x20"},
        # as long as a replica needs to start
        quiet={f'pagoda_scrape_missing_replicas{{{_I}, role="engine"}}': "0 1x5 0x20"},
        at="6m",
        before="5m",
        labels={"model_name": "m", "role": "engine"},
    ),
    "PagodaTelemetryLost": Case(
        fires={f"pagoda_spans_dropped_total{{{_I}}}": "0 0 512 512"},
        quiet={f"pagoda_spans_dropped_total{{{_I}}}": "512 512 512 512"},
        at="1m30s",
        before="30s",
        labels=_MODEL,
    ),
}


def unit_tests(rules: str, alerts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what `promtool test rules` reads.

    Args:
        rules: name of the file of rules.
        alerts: rules of that file that are tested.
    """
    return {
        "rule_files": [rules],
        "evaluation_interval": INTERVAL,
        "tests": [test for rule in alerts for test in _tests(rule)],
    }


def _tests(rule: dict[str, Any]) -> list[dict[str, Any]]:
    case = CASES[rule["alert"]]
    firing = {
        "exp_labels": case.labels | rule["labels"],
        "exp_annotations": rule["annotations"],
    }
    looks = [_look(rule, case.at, [firing])]
    if case.before:
        looks.append(_look(rule, case.before, []))
    return [_test(case.fires, looks), _test(case.quiet, [_look(rule, case.at, [])])]


def _test(series: dict[str, str], looks: list[dict[str, Any]]) -> dict[str, Any]:
    rows = [{"series": name, "values": values} for name, values in series.items()]
    return {"interval": INTERVAL, "input_series": rows, "alert_rule_test": looks}


def _look(rule: dict[str, Any], at: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    return {"eval_time": at, "alertname": rule["alert"], "exp_alerts": found}
