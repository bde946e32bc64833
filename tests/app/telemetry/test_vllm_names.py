from app.telemetry.exposition import to_text
from app.telemetry.ingress_metrics import IngressMetrics
from app.telemetry.vllm_names import vllm_families
from engine.runtime.metrics.engine_metrics import EngineMetrics
from engine.types import FinishReason
from tests.app.telemetry.records import ended
from tests.app.telemetry.test_exposition import samples
from tests.fakes.engine_handle import STATS, tokens_output

# what vLLM's own example board asks for
ASKED_FOR = (
    "vllm:e2e_request_latency_seconds_bucket", "vllm:e2e_request_latency_seconds_count",
    "vllm:generation_tokens_total", "vllm:inter_token_latency_seconds_bucket",
    "vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_requests_waiting",
    "vllm:prompt_tokens_total", "vllm:request_decode_time_seconds_sum",
    "vllm:request_generation_tokens_bucket", "vllm:request_max_num_generation_tokens_sum",
    "vllm:request_prefill_time_seconds_sum",
    "vllm:request_prompt_tokens_bucket", "vllm:request_queue_time_seconds_sum",
    "vllm:request_success_total", "vllm:time_to_first_token_seconds_bucket",
)  # fmt: skip


def test_the_names_of_a_board_of_vllm_are_there_with_our_values() -> None:
    ingress, engine = IngressMetrics(), EngineMetrics(STATS)
    ingress.take(ended(2.0))
    ingress.take(ended(4.0, is_stream=False, route="/v1/chat/completions"))
    engine.observe(tokens_output([(1, 5, FinishReason.LENGTH)]), 1.0)
    engine.set_gauges()
    scraped = [("i", ingress.store.series()), ("e", engine.store.series())]
    found = samples(to_text(scraped, "tiny", vllm_families(scraped, "tiny")))
    assert set(ASKED_FOR) <= {key[0] for key in found}
    labels = "engine=0", "model_name=tiny"
    assert found["vllm:generation_tokens_total", *labels, "replica=e"] == 1
    # streamed or not, of both routes
    assert found["vllm:e2e_request_latency_seconds_count", *labels, "replica=i"] == 2
    assert found["vllm:e2e_request_latency_seconds_sum", *labels, "replica=i"] == 6.0
    success = "engine=0", "finished_reason=length", "model_name=tiny", "replica=e"
    assert found["vllm:request_success_total", *success] == 1
