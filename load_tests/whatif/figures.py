"""From a replayed trace to figures: rates, latencies, preemptions, and what the memory was for."""

from dataclasses import dataclass

from load_tests.http.metrics import Objective, Summary, summarise
from load_tests.whatif.fleet import Flown
from load_tests.whatif.replica import USES, Served


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a replay gave; latencies are None when nothing was served.

    Attributes:
        num_requests, num_refused: of the trace; those refused are in no latency.
        makespan_s: start to the last token.
        requests_per_s, output_tokens_per_s: served, over the makespan.
        ttft_s, e2e_s: arrival to first and last token.
        tpot_s: mean seconds per token after the first, per request of several tokens.
        num_recomputed, num_swapped_out: preemptions of groups, by how they come back.
        mean_batch: sequences that got a token in a step, mean over time with steps.
        busy_share: time with steps, mean over replicas.
        uses: percent of the KV slots by use, mean over time with steps; they sum to 100.
        shared_saving: percent of the slots that sharing saved, of those that would be filled.
        cached_share: percent of the prompt tokens that were found in the cache.
        good_share: share of all requests that were served within the objective.
    """

    num_requests: int
    num_refused: int
    makespan_s: float
    requests_per_s: float
    output_tokens_per_s: float
    ttft_s: Summary | None
    tpot_s: Summary | None
    e2e_s: Summary | None
    num_recomputed: int
    num_swapped_out: int
    mean_batch: float
    busy_share: float
    uses: dict[str, float]
    shared_saving: float
    cached_share: float
    good_share: float


def measure(flown: Flown, objective: Objective) -> Figures:
    """Compute every figure of a replay."""
    done = [served for served in flown.served if not served.is_refused]
    replicas = flown.replicas
    makespan_s = max((served.finish_s or 0.0 for served in done), default=0.0)
    busy_s = sum(replica.busy_s for replica in replicas)
    slot_s = {use: sum(replica.slot_s[use] for replica in replicas) for use in USES}
    saved_s = sum(replica.slot_s["shared_saving"] for replica in replicas)
    num_tokens = sum(served.request.output_len * served.request.n for served in done)
    num_prompt_tokens = sum(served.request.input_len for served in done)
    return Figures(
        num_requests=len(flown.served),
        num_refused=len(flown.served) - len(done),
        makespan_s=makespan_s,
        requests_per_s=_ratio(len(done), makespan_s),
        output_tokens_per_s=_ratio(num_tokens, makespan_s),
        ttft_s=summarise([served.ttft_s for served in done]),
        tpot_s=summarise([value for served in done if (value := served.tpot_s) is not None]),
        e2e_s=summarise([served.e2e_s for served in done]),
        num_recomputed=sum(replica.num_preemptions[0] for replica in replicas),
        num_swapped_out=sum(replica.num_preemptions[1] for replica in replicas),
        mean_batch=_ratio(sum(replica.sequence_s for replica in replicas), busy_s),
        busy_share=_ratio(busy_s, makespan_s * len(replicas)),
        uses={use: 100 * _ratio(slot_s[use], sum(slot_s.values())) for use in USES},
        shared_saving=100 * _ratio(saved_s, saved_s + slot_s["filled"]),
        cached_share=100 * _ratio(sum(served.num_cached for served in done), num_prompt_tokens),
        good_share=sum(is_good(served, objective) for served in done) / len(flown.served),
    )


def is_good(served: Served, objective: Objective) -> bool:
    """Whether a request that was served kept both limits; a single token has no tpot to miss."""
    return served.ttft_s <= objective.ttft_s and (served.tpot_s or 0.0) <= objective.tpot_s


def _ratio(number: float, of: float) -> float:
    return number / of if of > 0 else 0.0
