"""A Grafana dashboard of the metrics, in the order in which one looks for what is wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

UID = "pagoda"
# what is chosen above the board
CHOSEN = 'model_name=~"$model", replica=~"$replica"'
_WINDOW = "$__rate_interval"
_COMPUTED = 'source="computed"'
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One panel.

    Attributes:
        todo: what to do when it looks bad.
        lines: (expression, legend) pairs.
        unit: Grafana's name of it.
        is_stacked: whether lines lie on each other.
    """

    title: str
    todo: str
    lines: tuple[tuple[str, str], ...]
    unit: str = "short"
    is_stacked: bool = False


def rate(name: str, by: str = "", where: str = "") -> str:
    """What a counter gains in a second, of all that is chosen."""
    labels = f"{CHOSEN}, {where}" if where else CHOSEN
    total = f"sum by ({by})" if by else "sum"
    return f"{total} (rate(pagoda_{name}{{{labels}}}[{_WINDOW}]))"


def now(name: str, by: str = "", where: str = "", total: str = "sum") -> str:
    """A gauge, of all that is chosen."""
    labels = f"{CHOSEN}, {where}" if where else CHOSEN
    return (
        f"{total} by ({by}) (pagoda_{name}{{{labels}}})"
        if by
        else (f"{total} (pagoda_{name}{{{labels}}})")
    )


def quantile(share: float, name: str, where: str = "") -> str:
    """A quantile of a histogram."""
    return f"histogram_quantile({share:g}, {rate(f'{name}_bucket', 'le', where)})"


def quantiles(name: str) -> tuple[tuple[str, str], ...]:
    """The usual three."""
    return tuple((quantile(share, name), f"p{share * 100:g}") for share in (0.5, 0.95, 0.99))


def ratio(part: str, whole: str) -> str:
    """A share, 0 where there is nothing."""
    return f"{part} / clamp_min({whole}, 0.000001)"


def mean(name: str) -> str:
    """Seconds of a phase that a request has in the mean; not all are preempted, but all end."""
    of = "decode_seconds" if name == "preempted_seconds" else name
    return ratio(rate(f"{name}_sum"), rate(f"{of}_count"))


# row -> its panels
ROWS: tuple[tuple[str, tuple[Chart, ...]], ...] = (
    ("Now", (
        Chart(title="Replicas ready", todo="Fewer than there should be: look for gang_lost and "
              "replica_lost in the log.", lines=((now("ready"), "ready"),)),
        Chart(title="Requests", todo="Rising errors: see outcomes below.", unit="reqps",
              lines=((rate("requests_total", "api"), "{{api}}"),)),
        Chart(title="Output tokens", todo="Falling with a queue: see the row on time.",
              lines=((rate("generated_tokens_total"), "tokens/s"),)),
    )),
    ("What users feel", (
        Chart(title="Time to first token", todo="High with a queue: add replicas; high without: "
              "prompts are long, or max_num_batched_tokens is small.", unit="s",
              lines=quantiles("time_to_first_token_seconds")),
        Chart(title="Between tokens", todo="High: set inter_token_latency_ms, or lower "
              "max_num_batched_tokens.", unit="s", lines=quantiles("inter_token_seconds")),
        Chart(title="Whole requests", todo="Compare with the lengths of answers below.", unit="s",
              lines=quantiles("e2e_seconds")),
        Chart(title="Outcomes", todo="error: the log says why; overloaded: add replicas; "
              "disconnect: clients wait too long.", unit="reqps", is_stacked=True,
              lines=((rate("requests_total", "outcome"), "{{outcome}}"),)),
        Chart(title="Answers by status", todo="429 and 503 are refusals: clients try again.",
              unit="reqps", is_stacked=True,
              lines=((rate("http_requests_total", "code"), "{{code}}"),)),
    )),
    ("Where time goes", (
        Chart(title="A request's time, mean", todo="queue: add replicas; preempted: add KV cache "
              "or lower max_num_seqs.", unit="s", is_stacked=True,
              lines=tuple((mean(f"{part}_seconds"), part)
                          for part in ("queue", "prefill", "decode", "preempted"))),
        Chart(title="Queue", todo="Grows without end: more arrives than is served.", unit="s",
              lines=(*quantiles("queue_seconds"), (now("oldest_seconds", "state", total="max"),
                                                   "oldest {{state}}"))),
        Chart(title="Steps", todo="Slow steps of few tokens: another process takes the device.",
              unit="s", lines=quantiles("step_seconds")),
    )),
    ("KV cache", (
        Chart(title="Slots by use", todo="Much internal or reserved: the memory policy wastes it; "
              "little free with a queue: the cache is too small.", is_stacked=True,
              lines=((now("kv_slots", "use"), "{{use}}"), (now("kv_capacity_slots"), "capacity"))),
        Chart(title="Saved by sharing", todo="Slots that n, beams and prefixes did not need.",
              lines=((now("kv_shared_saving_slots"), "slots"),)),
        Chart(title="Prompt tokens from the cache", todo="Low with prompts that begin alike: see "
              "evictions.", unit="percentunit",
              lines=((ratio(rate("prompt_tokens_total", where='source="cached"'),
                            rate("prompt_tokens_total")), "hit rate"),)),
        Chart(title="Evictions and swaps", todo="Many: the cache is too small for its prefixes.",
              lines=((rate("evicted_blocks_total"), "evicted"),
                     (rate("swap_blocks_total", "direction"), "swapped {{direction}}"))),
        Chart(title="Usage", todo="Near 1 with a queue: add KV cache or replicas.",
              unit="percentunit", lines=((now("kv_usage_ratio", "replica", total="max"),
                                          "{{replica}}"),)),
    )),
    ("Scheduler", (
        Chart(title="Refused", todo="Replicas have too much to do: add some, or mind Retry-After.",
              lines=((rate("refusals_total", "reason"), "{{reason}}"),)),
        Chart(title="Requests by state", todo="waiting grows: see the queue.", is_stacked=True,
              lines=((now("requests", "state"), "{{state}}"),)),
        Chart(title="Steps by kind", todo="Few mixed steps with a queue: the token budget is full.",
              lines=((rate("steps_total", "kind"), "{{kind}}"),)),
        Chart(title="Tokens of a step", todo="Small batches: there is little to do, or little "
              "memory.", lines=quantiles("step_tokens")),
        Chart(title="The scheduler's own time", todo="Near the time of a step: fewer sequences.",
              unit="s", lines=tuple((quantile(0.99, "host_seconds", f'part="{part}"'), part)
                                    for part in ("schedule", "update"))),
        Chart(title="Preemptions", todo="Steady ones: more KV cache, or lower max_num_seqs.",
              lines=((rate("preemptions_total", "how"), "{{how}}"),)),
        Chart(title="Computed again", todo="Above a fifth: the batch thrashes.", unit="percentunit",
              lines=((ratio(rate("recomputed_tokens_total"),
                            f"({rate('recomputed_tokens_total')} + "
                            f"{rate('prompt_tokens_total', where=_COMPUTED)})"),
                      "of prefilled tokens"),)),
    )),
    ("Work", (
        Chart(title="Prompts", todo="Long ones want a larger max_num_batched_tokens.",
              lines=quantiles("request_prompt_tokens")),
        Chart(title="Answers", todo="Long ones hold KV cache for long.",
              lines=quantiles("choice_output_tokens")),
        Chart(title="Candidates", todo="n, best_of and beams multiply rows.",
              lines=quantiles("request_choices")),
        Chart(title="Wasted rows", todo="Tokens behind an end; normal below one per answer.",
              lines=((rate("wasted_rows_total"), "rows/s"),)),
        Chart(title="Forks and copies", todo="Copies on write of n and beams.",
              lines=((rate("forks_total"), "forks"), (rate("block_copies_total"), "copies"))),
    )),
    ("Inside", (
        Chart(title="Event loop of ingresses", todo="Above 50 ms: more ingress replicas.", unit="s",
              lines=quantiles("event_loop_lag_seconds")),
        Chart(title="Undelivered output", todo="An ingress does not read: it is overloaded.",
              unit="bytes", lines=((now("undelivered_bytes", "replica", total="max"),
                                    "{{replica}}"),)),
        Chart(title="Losses", todo="The log names the cause.",
              lines=((rate("gang_lost_total"), "gangs"),
                     (rate("resumes_total"), "requests resumed"),
                     (rate("client_lost_total", "reason"), "ingresses {{reason}}"),
                     (rate("spoiled_blocks_total"), "spoiled blocks"),
                     (rate("spans_dropped_total"), "spans dropped"))),
        Chart(title="Replicas that did not answer a scrape", todo="Serve names them.",
              lines=((now("scrape_missing_replicas", "role", total="max"), "{{role}}"),)),
        Chart(title="Since the last step", todo="Above step_deadline_s a replica is started anew.",
              unit="s", lines=((now("step_age_seconds", "replica", total="max"), "{{replica}}"),)),
    )),
)  # fmt: skip


def dashboard() -> dict[str, Any]:
    """Return the model of the dashboard, as Grafana imports it."""
    return {
        "uid": UID,
        "title": "Pagoda",
        "tags": ["llm", "pagoda"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), _variable("model", "model_name", "pagoda_info"),
                                _variable("replica", "replica", '{__name__=~"pagoda_.+"}')]},
        "panels": _panels(),
    }  # fmt: skip


def _panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, inside in ROWS:
        at = {"x": 0, "y": top, "w": 24, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "gridPos": at,
                       "collapsed": False, "panels": []})  # fmt: skip
        top += 1
        for number, panel in enumerate(inside):
            row, column = divmod(number, _COLUMNS)
            at = {"x": column * _WIDTH, "y": top + row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            panels.append(_panel(panel, len(panels) + 1, at))
        top += _HEIGHT * -(-len(inside) // _COLUMNS)
    return panels


def _panel(panel: Chart, number: int, at: dict[str, int]) -> dict[str, Any]:
    stacking = {"mode": "normal" if panel.is_stacked else "none", "group": "A"}
    style = {"stacking": stacking, "fillOpacity": 30 if panel.is_stacked else 0, "lineWidth": 1}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.todo,
        "gridPos": at,
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": style},
                        "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                    "tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": _targets(panel.lines),
    }  # fmt: skip


def _targets(lines: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    return [
        {"refId": chr(ord("A") + number), "expr": expression, "legendFormat": legend}
        for number, (expression, legend) in enumerate(lines)
    ]


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "hide": 0}


def _variable(name: str, label: str, metric: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "query": {"query": f"label_values({metric}, {label})", "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
