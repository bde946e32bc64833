"""Metrics under vLLM's names, for boards and routers that look for those (`metrics.aliases`).

A value means what ours means. Where the two servers differ: we count a request once, vLLM one for
each of its n sequences, so its prompt tokens are n times the prompt's.
"""

from collections.abc import Mapping, Sequence

from prometheus_client.metrics_core import Metric as Family

from app.telemetry.exposition import ALL_METRICS, Scraped, add, make_family
from engine.runtime.metrics.metric import Metric
from engine.runtime.metrics.metric_store import Series
from engine.types import int64

# vLLM's name -> ours, with the labels that are chosen of ours (None: summed over)
_NAMES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "num_requests_running": ("requests", {"state": "running"}),
    "num_requests_waiting": ("requests", {"state": "waiting"}),
    "kv_cache_usage_perc": ("kv_usage_ratio", {}),
    "prompt_tokens": ("prompt_tokens_total", {}),
    "prompt_tokens_cached": ("prompt_tokens_total", {"source": "cached"}),
    "prefix_cache_queries": ("prompt_tokens_total", {}),
    "prefix_cache_hits": ("prompt_tokens_total", {"source": "cached"}),
    "generation_tokens": ("generated_tokens_total", {}),
    "num_preemptions": ("preemptions_total", {}),
    "time_to_first_token_seconds": ("time_to_first_token_seconds", {}),
    "inter_token_latency_seconds": ("inter_token_seconds", {}),
    "request_time_per_output_token_seconds": ("time_per_output_token_seconds", {}),
    "e2e_request_latency_seconds": ("e2e_seconds", {}),
    "request_queue_time_seconds": ("queue_seconds", {}),
    "request_prefill_time_seconds": ("prefill_seconds", {}),
    "request_decode_time_seconds": ("decode_seconds", {}),
    "request_prompt_tokens": ("request_prompt_tokens", {}),
    "request_generation_tokens": ("choice_output_tokens", {}),
    "request_max_num_generation_tokens": ("request_longest_output_tokens", {}),
    "request_params_n": ("request_choices", {}),
}
_LABELS = ("model_name", "engine", "replica")


def vllm_families(scraped: Scraped, model_name: str) -> list[Family]:
    """Return what there is under vLLM's names; `request_success` has the choices that ended."""
    metrics = {metric.name: metric for metric in ALL_METRICS}
    found = [
        _alias(vllm, metrics[ours], chosen, scraped, model_name)
        for vllm, (ours, chosen) in _NAMES.items()
    ]
    choices = metrics["choices_total"]
    success = make_family("vllm:request_success", choices, (*_LABELS, "finished_reason"))
    for replica, series in scraped:
        for each in series:
            if each.name == choices.name:
                add(success, choices, (model_name, "0", replica, *each.labels), each)
    return [family for family in (*found, success) if family.samples]


def _alias(
    name: str, metric: Metric, chosen: Mapping[str, str], scraped: Scraped, model_name: str
) -> Family:
    family = make_family(f"vllm:{name}", metric, _LABELS)
    for replica, series in scraped:
        own = [each for each in series if each.name == metric.name and _fits(metric, each, chosen)]
        if own:
            add(family, metric, (model_name, "0", replica), _total(own))
    return family


def _fits(metric: Metric, series: Series, chosen: Mapping[str, str]) -> bool:
    labels = dict(zip(metric.labels, series.labels, strict=True))
    return all(labels[name] == value for name, value in chosen.items())


def _total(series: Sequence[Series]) -> Series:
    counts = [sum(column) for column in zip(*(each.counts for each in series), strict=True)]
    value = sum(each.value for each in series)
    return Series(name=series[0].name, labels=(), value=value, counts=int64(counts))
