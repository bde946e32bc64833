"""What a command reads out of `/metrics`: load, tokens and KV cache of all replicas together."""

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Numbers of one scrape.

    Attributes:
        requests: ended requests; tokens: given to clients; both since the replicas started.
        running, waiting, swapped: requests by where they are.
        kv_usage: share of the KV cache in use, of the fullest replica.
        capacity_slots: KV tokens of one replica; 0 if none has said.
        kv_slots: KV tokens by use, of all replicas.
        preemptions: since the replicas started.
        missing: replicas that have not answered.
    """

    requests: float
    tokens: float
    running: int
    waiting: int
    swapped: int
    kv_usage: float
    capacity_slots: int
    block_size: int
    num_replicas: int
    kv_slots: dict[str, float]
    preemptions: float
    missing: int


def read_snapshot(text: str) -> Snapshot:
    """Take what is shown out of a scrape."""
    samples = [
        sample for family in text_string_to_metric_families(text) for sample in family.samples
    ]

    def total(name: str, **labels: str) -> float:
        return sum(
            sample.value
            for sample in samples
            if sample.name == f"pagoda_{name}" and labels.items() <= sample.labels.items()
        )

    capacities = [each.value for each in samples if each.name == "pagoda_kv_capacity_slots"]
    usages = [each.value for each in samples if each.name == "pagoda_kv_usage_ratio"]
    uses = [each.labels["use"] for each in samples if each.name == "pagoda_kv_slots"]
    sizes = [each.labels["block_size"] for each in samples if each.name == "pagoda_info"]
    return Snapshot(
        requests=total("requests_total"),
        tokens=total("generated_tokens_total"),
        running=int(total("requests", state="running")),
        waiting=int(total("requests", state="waiting")),
        swapped=int(total("requests", state="swapped")),
        kv_usage=max(usages, default=0.0),
        capacity_slots=int(max(capacities, default=0)),
        block_size=int(sizes[0]) if sizes else 0,
        num_replicas=len(capacities),
        kv_slots={use: total("kv_slots", use=use) for use in dict.fromkeys(uses)},
        preemptions=total("preemptions_total"),
        missing=int(total("scrape_missing_replicas")),
    )


def load_line(before: Snapshot, now: Snapshot, seconds: float) -> str:
    """One line about what a server does, from two scrapes `seconds` apart."""
    # a replica that is replaced begins at 0 again
    requests, tokens = (
        max(0.0, new - old) / seconds
        for old, new in ((before.requests, now.requests), (before.tokens, now.tokens))
    )
    swapped = f", {now.swapped} swapped" if now.swapped else ""
    return (
        f"{requests:.1f} req/s, {tokens:,.0f} tok/s, {now.running} running, {now.waiting} waiting"
        f"{swapped}, KV {now.kv_usage:.0%}"
    )
