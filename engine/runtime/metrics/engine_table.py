"""The metrics of an engine replica."""

from engine.runtime.metrics.metric import (
    HOST_S,
    REQUEST_S,
    TOKEN_S,
    TOKENS,
    Metric,
    counter,
    gauge,
    histogram,
)

CHOICES_ENDED = counter(
    "choices",
    "choices that have ended, by the engine's reason; a stop string is an `abort`, and what waited "
    "for too long and was not computed `expired`",
    "reason",
)
REFUSALS = counter(
    "refusals",
    "requests that a replica has refused for what waits there: too many `requests` or prompt "
    "`tokens`, more than the `share` of a key, or a `wait` beyond the deadline. Ingresses believe "
    "that for a moment and refuse more by themselves: `pagoda_requests_total` has all",
    "reason",
)
PROMPT_TOKENS = counter(
    "prompt_tokens",
    "prompt tokens of requests that have entered the batch, once a request: `computed`, or found "
    "in the prefix cache (`cached`)",
    "source",
)
RECOMPUTED_TOKENS = counter(
    "recomputed_tokens",
    "tokens prefilled again after a preemption, or because another engine was lost",
)
GENERATED_TOKENS = counter("generated_tokens", "tokens that went to clients; beams: of the result")
REQUESTS = gauge("requests", "requests by where they are: running, waiting or swapped", "state")
OLDEST_S = gauge(
    "oldest_seconds", "age of the earliest request that is waiting or swapped; 0 for none", "state"
)
KV_SLOTS = gauge(
    "kv_slots",
    "token slots of the KV cache by use, which sum to the capacity. The waste has the names of the "
    "paper's figure 2: `reserved` for tokens to come, `internal` beyond the last token, `external` "
    "between requests; `cached` and `pinned` are unused but hold prefixes",
    "use",
)
KV_CAPACITY = gauge("kv_capacity_slots", "token slots of the KV cache")
KV_SAVING = gauge("kv_shared_saving_slots", "slots more that requests would need without sharing")
KV_SWAPPED = gauge("kv_swapped_slots", "slots in the swap space")
KV_USAGE = gauge("kv_usage_ratio", "share of the KV cache that is neither free nor only cached")
PREEMPTIONS = counter("preemptions", "requests that left the batch for want of blocks", "how")
BLOCK_COPIES = counter("block_copies", "blocks copied when one of several sequences wrote (COW)")
FORKS = counter("forks", "sequences and beams forked from another one")
EVICTED_BLOCKS = counter("evicted_blocks", "cached blocks whose space was needed")
WASTED_ROWS = counter("wasted_rows", "tokens sampled behind an end that came while they ran")
SWAP_BLOCKS = counter("swap_blocks", "blocks copied to the swap space and back", "direction")
SPOILED_BLOCKS = counter("spoiled_blocks", "swap blocks that did not hold what they should")
STEPS = counter("steps", "steps by what they computed: prefill, decode or mixed", "kind")
STEP_S = histogram("step_seconds", "time of the workers for a step", TOKEN_S, "kind")
STEP_TOKENS = histogram("step_tokens", "tokens of a step", TOKENS)
HOST_WORK_S = histogram(
    "host_seconds", "the scheduler's own work on a step: `schedule` or `update`", HOST_S, "part"
)
INTER_TOKEN_S = histogram(
    "inter_token_seconds", "between two tokens of a choice, as the replica sees them", TOKEN_S
)
QUEUE_S = histogram("queue_seconds", "from the arrival of a request to its blocks", REQUEST_S)
PREFILL_S = histogram("prefill_seconds", "from its blocks to its first token", REQUEST_S)
DECODE_S = histogram(
    "decode_seconds", "from its first token to its end, without preemptions", REQUEST_S
)
PREEMPTED_S = histogram("preempted_seconds", "from a preemption to the return", REQUEST_S)
CLIENT_LOST = counter(
    "client_lost", "ingresses given up with requests open, as silent or slow", "reason"
)
UNDELIVERED = gauge("undelivered_bytes", "output on its way to the slowest ingress")
GANG_LOST = counter("gang_lost", "times that scheduler or workers had to be started again")
READY = gauge("ready", "1 while the replica takes requests and makes steps")
STEP_AGE_S = gauge("step_age_seconds", "since the last step, while requests are open; else 0")
STARTUP_S = gauge("startup_seconds", "time of the last start of the engine's processes")

ENGINE_METRICS: tuple[Metric, ...] = (
    CHOICES_ENDED, REFUSALS, PROMPT_TOKENS, RECOMPUTED_TOKENS, GENERATED_TOKENS, REQUESTS,
    OLDEST_S, KV_SLOTS, KV_CAPACITY, KV_SAVING, KV_SWAPPED, KV_USAGE, PREEMPTIONS, BLOCK_COPIES,
    FORKS, EVICTED_BLOCKS,
    WASTED_ROWS, SWAP_BLOCKS, SPOILED_BLOCKS, STEPS, STEP_S, STEP_TOKENS, HOST_WORK_S,
    INTER_TOKEN_S, QUEUE_S, PREFILL_S, DECODE_S, PREEMPTED_S, CLIENT_LOST, UNDELIVERED, GANG_LOST,
    READY, STEP_AGE_S, STARTUP_S,
)  # fmt: skip
