"""Each module has a test module at the same place below tests/, or is named here.

A reader who changes a module finds its tests without searching.
"""

import ast
from collections.abc import Iterator
from functools import cache

from tests import ROOT
from tests.test_architecture import OURS, imports, module_name, module_of, sources

# module -> the test modules below tests/ that test it
TESTED_ELSEWHERE = {
    # app
    **{
        f"app/command/client/{name}.py": ("app/command/client/test_generation.py",)
        for name in ("chat", "complete")
    },
    "app/command/client/errors.py": ("app/command/client/test_connection.py",),
    "app/command/start/server.py": ("app/command/test_serve.py",),
    **{
        f"app/command/tools/{name}.py": ("app/command/tools/test_load_tests.py",)
        for name in ("bench", "calibrate", "figures", "whatif")
    },
    "app/generation/outlet.py": ("app/generation/test_generation.py",),
    "app/generation/request/replies.py": ("app/api/chat/test_tools.py",),
    "app/http/api/generate_routes.py": ("app/api/test_generation_routes.py",),
    "app/grammars/checker.py": ("app/grammars/test_grammar_compiler.py",),
    "app/grammars/grammar_spec.py": ("app/grammars/test_grammar_compiler.py",),
    "app/http/direct_stream.py": ("app/api/streams/test_direct_streams.py",),
    "app/http/generate_endpoint.py": ("app/api/test_generation_routes.py",),
    "app/http/services.py": ("app/http/test_routes.py",),
    "app/protocol/anthropic/answer.py": ("app/api/chat/test_messages.py",),
    "app/protocol/anthropic/blocks.py": ("app/api/chat/test_messages.py",),
    "app/protocol/anthropic/request.py": ("app/api/chat/test_messages.py",),
    "app/protocol/chat/events.py": ("app/http/test_sse.py",),
    "app/protocol/chat/messages.py": (
        "app/protocol/test_chat_request.py",
        "app/api/chat/test_tools.py",
    ),
    "app/protocol/chat/reply_reader.py": ("app/api/chat/test_tools.py",),
    "app/protocol/chat/tools.py": ("app/api/chat/test_tools.py",),
    "app/protocol/chat/translated.py": ("app/api/chat/test_messages.py",),
    "app/protocol/chat_answer.py": ("app/protocol/test_answer.py",),
    "app/protocol/completion_answer.py": ("app/protocol/test_answer.py",),
    "app/protocol/errors.py": ("app/http/test_errors.py", "app/protocol/test_parsing.py"),
    "app/protocol/generation_fields.py": (
        "app/api/fields/test_fields.py",
        "app/protocol/test_chat_request.py",
    ),
    "app/protocol/responses/answer.py": ("app/api/chat/test_responses.py",),
    "app/protocol/responses/items.py": ("app/api/chat/test_responses.py",),
    "app/protocol/responses/items_of_answer.py": ("app/api/chat/test_responses.py",),
    "app/protocol/responses/request.py": ("app/api/chat/test_responses.py",),
    "app/protocol/sampling_fields.py": ("app/api/test_sampling_fields.py",),
    "app/protocol/structured/formats.py": ("app/protocol/structured/test_structured_fields.py",),
    "app/protocol/api_settings.py": ("app/test_main.py",),
    "app/text/reply/harmony.py": ("app/text/reply/test_formats.py",),
    "app/text/reply/instructions.py": ("app/text/reply/test_history.py",),
    "app/text/reply/json_calls.py": ("app/text/reply/test_formats.py",),
    "app/text/reply/machine.py": ("app/text/reply/test_formats.py",),
    "app/text/reply/parts.py": ("app/text/reply/test_formats.py",),
    "app/text/reply/pythonic_calls.py": ("app/text/reply/test_formats.py",),
    "app/text/reply/thinking.py": ("app/text/reply/test_formats.py",),
    "app/text/template_options.py": ("app/text/test_chat_template.py",),
    "app/ui/audience.py": ("app/ui/test_frames.py",),
    "app/ui/page_options.py": ("app/ui/test_feed.py",),
    "app/http/operator/bodies.py": ("app/http/operator/test_endpoints.py",),
    "app/serve/drain.py": ("app/serve/test_changing_replicas.py",),
    "load_tests/bench/grammars/libraries.py": ("load_tests/bench/grammars/test_command.py",),
    "app/serve/observed_ingress.py": ("app/serve/test_peers.py",),
    "app/settings/request_options.py": ("app/settings/test_config.py",),
    "app/settings/telemetry_options.py": ("app/settings/test_option.py",),
    "app/telemetry/ingress_table.py": ("app/telemetry/test_ingress_metrics.py",),
    "app/telemetry/telemetry.py": ("app/telemetry/test_recorded_app.py",),
    "app/telemetry/traces/trace_files.py": ("app/telemetry/traces/test_tracer.py",),
    "app/telemetry/traces/tracing_options.py": ("app/test_main.py",),
    # engine
    **{
        f"engine/architectures/{name}.py": ("engine/test_model_config.py",)
        for name in (
            "architecture",
            "glm",
            "gpt",
            "harmless",
            "layer_pattern",
            "names",
            "registry",
            "rotary",
        )
    },
    **{
        f"engine/architectures/{name}.py": ("engine/model/test_decoder.py",)
        for name in ("experts", "gemma", "llama")
    },
    **{
        f"kernels/triton/experts/{name}.py": ("kernels/triton/experts/test_triton_experts.py",)
        for name in ("combine", "down", "gate_groups", "gate_up", "multiply")
    },
    "engine/architectures/weights.py": ("app/models/test_checkpoint.py",),
    "engine/config/resume.py": ("app/settings/test_option.py",),
    "engine/config/model_spec.py": ("engine/test_model_config.py",),
    "engine/config/swap_layout.py": ("engine/worker/swap/test_swap_arena.py",),
    "engine/config/scheduler.py": ("engine/config/test_engine.py",),
    "engine/core/decoding/search_steps.py": ("engine/core/decoding/test_beam_search.py",),
    "engine/core/decoding/stop_pattern.py": ("engine/core/decoding/test_beam_search.py",),
    "engine/core/executor.py": ("engine/core/test_engine.py",),
    "engine/executor/rank_worker.py": ("engine/executor/test_rank_actor.py",),
    "engine/core/memory/block_manager.py": ("engine/core/memory/test_paged_block_manager.py",),
    "engine/core/memory/block_table.py": ("engine/core/memory/test_paged_block_manager.py",),
    "engine/core/memory/paged_tables.py": ("engine/core/memory/test_paged_block_manager.py",),
    "engine/core/memory/prefix_index.py": ("engine/core/memory/test_paged_block_manager.py",),
    "engine/core/memory/reserved/reservation.py": (
        "engine/core/memory/reserved/test_reserved_block_manager.py",
    ),
    "engine/core/scheduling/deferred_release.py": ("engine/core/test_ends.py",),
    "engine/core/scheduling/grouping.py": ("engine/core/scheduling/test_limits.py",),
    "engine/core/scheduling/spoiled.py": ("engine/core/test_preempted_groups.py",),
    "engine/core/scheduling/planner.py": ("engine/core/test_scheduler.py",),
    "engine/errors.py": ("app/http/test_errors.py",),
    "engine/model/dummy.py": ("engine/model/test_loader.py",),
    **{
        f"engine/model/{name}.py": ("engine/model/test_decoder.py",)
        for name in ("attention", "feed_forward", "norms")
    },
    "engine/model/model.py": ("engine/model/test_models.py",),
    "engine/model/parameters.py": ("engine/model/test_loader.py",),
    "engine/model/safetensors_folder.py": ("engine/model/test_loader.py",),
    "engine/model/vocab.py": (
        "engine/model/test_models.py",
        "engine/whole/test_tensor_parallel.py",
    ),
    "engine/runtime/client/engine_handle.py": ("engine/runtime/client/test_open_requests.py",),
    "engine/runtime/metrics/engine_table.py": ("engine/runtime/metrics/test_engine_metrics.py",),
    "engine/runtime/metrics/metric.py": ("engine/runtime/metrics/test_metric_store.py",),
    "engine/runtime/metrics/token_gaps.py": ("engine/runtime/metrics/test_engine_metrics.py",),
    "engine/runtime/protocol.py": ("engine/runtime/client/test_client.py",),
    "engine/types/columns.py": ("engine/executor/test_codec.py",),
    "engine/core/memory/windows/grouped_table.py": (
        "engine/core/memory/windows/test_grouped_block_manager.py",
    ),
    "engine/core/memory/windows/grouped_prefix_index.py": (
        "engine/core/memory/windows/test_grouped_block_manager.py",
    ),
    "engine/types/memory.py": ("engine/runtime/test_messages.py",),
    "engine/types/output.py": ("engine/runtime/test_outputs.py",),
    "engine/types/progress.py": ("engine/runtime/test_messages.py",),
    "engine/types/request.py": ("engine/runtime/test_messages.py",),
    "engine/types/snapshot.py": ("engine/core/test_snapshot.py",),
    "engine/types/step.py": ("engine/executor/test_codec.py",),
    "engine/types/terms.py": ("engine/core/scheduling/test_queue_order.py",),
    # kernels
    "kernels/linears.py": ("kernels/test_reference.py",),
    "kernels/experts.py": ("kernels/test_looped_experts.py",),
    "kernels/backend.py": ("kernels/test_reference.py", "kernels/cpu/test_backend.py"),
    "kernels/batch.py": ("kernels/test_reference.py", "kernels/triton/test_batch.py"),
    "kernels/checksum.py": ("engine/worker/swap/test_swap_arena.py",),
    "kernels/cuda/pinned_buffers.py": ("engine/worker/swap/test_swap_arena.py",),
    "kernels/cpu/layout_addresses.py": ("kernels/cpu/test_backend.py",),
    "kernels/runtime.py": ("engine/worker/test_staging.py",),
    **{
        f"kernels/triton/attention/{name}.py": ("kernels/triton/attention/test_attention_work.py",)
        for name in ("decode_attention", "decode_tuning")
    },
    "kernels/triton/attention/prefill_attention.py": (
        "kernels/triton/attention/test_attention_work.py",
    ),
    "kernels/triton/attention/partial_softmax.py": (
        "kernels/triton/attention/test_attention_work.py",
    ),
    "kernels/triton/attention/hopper/attend.py": (
        "kernels/triton/attention/hopper/test_prefill.py",
    ),
    "kernels/triton/attention/hopper/fetch.py": (
        "kernels/triton/attention/hopper/test_prefill.py",
    ),
    "kernels/triton/attention/hopper/gluon_names.py": (
        "kernels/triton/attention/hopper/test_prefill.py",
    ),
    "kernels/triton/attention/hopper/ring.py": ("kernels/triton/attention/hopper/test_prefill.py",),
    "kernels/triton/attention/hopper/schedule.py": (
        "kernels/triton/attention/hopper/test_prefill.py",
    ),
    "kernels/row_sums.py": ("kernels/triton/peers/test_peer_sum.py",),
    "kernels/triton/peers/finishing.py": ("kernels/triton/peers/test_peer_sum.py",),
    "kernels/triton/peers/flagged.py": ("kernels/triton/peers/test_peer_sum.py",),
    "kernels/triton/peers/tagged.py": ("kernels/triton/peers/test_peer_sum.py",),
    "kernels/triton/launch.py": ("kernels/triton/test_norm.py",),
    "kernels/triton/linear/tiles.py": ("kernels/triton/linear/test_streamed_product.py",),
    "kernels/triton/paging.py": ("kernels/triton/attention/test_attention_work.py",),
    **{
        f"kernels/triton/sampling/{name}.py": ("kernels/triton/sampling/test_sample.py",)
        for name in ("best_tokens", "filtering", "logprobs", "noise", "redrawing", "selection")
    },
    # load_tests
    "load_tests/bench/in_process/arrangements.py": (
        "load_tests/bench/in_process/test_deterministic.py",
    ),
    "load_tests/bench/kernels/attention.py": ("load_tests/bench/kernels/test_parts.py",),
    "load_tests/bench/kernels/elementwise.py": ("load_tests/bench/kernels/test_parts.py",),
    "load_tests/bench/kernels/experts.py": ("load_tests/bench/kernels/test_parts.py",),
    "load_tests/bench/kernels/fa3.py": ("load_tests/bench/kernels/test_parts.py",),
    "load_tests/bench/kernels/inputs.py": ("load_tests/bench/kernels/test_cpu.py",),
    "load_tests/bench/kernels/linears.py": ("load_tests/bench/kernels/test_parts.py",),
    "load_tests/bench/kernels/long_attention.py": ("load_tests/bench/kernels/test_parts.py",),
    "load_tests/bench/kernels/sampling.py": ("load_tests/bench/kernels/test_parts.py",),
    "load_tests/bench/peers/race.py": ("load_tests/bench/peers/test_commands.py",),
    "load_tests/bench/peers/vllm_cpu_child.py": ("load_tests/bench/peers/test_vllm_cpu.py",),
    "load_tests/faults/two_nodes.py": ("load_tests/faults/test_command.py",),
    "load_tests/http/display.py": ("load_tests/http/test_load.py",),
    "load_tests/http/drive.py": ("load_tests/http/test_session.py",),
    "load_tests/http/plots.py": ("load_tests/http/test_load.py",),
    "load_tests/http/report.py": ("load_tests/http/test_load.py",),
    "load_tests/machine.py": ("load_tests/test_report.py",),
    "load_tests/monitoring/command.py": ("load_tests/test_main.py",),
    "load_tests/options.py": ("load_tests/test_main.py",),
    "load_tests/paper/experiments/scales.py": ("load_tests/paper/experiments/test_catalogue.py",),
    "load_tests/paper/reporting/plots.py": ("load_tests/paper/runners/test_simulated.py",),
    "load_tests/paper/reporting/report.py": ("load_tests/paper/runners/test_simulated.py",),
    "load_tests/paper/runners/engine_bench.py": ("load_tests/paper/runners/test_live.py",),
    "load_tests/paper/runners/measured_card.py": ("load_tests/paper/runners/test_live.py",),
    "load_tests/paper/runners/recovery.py": ("load_tests/paper/runners/test_live.py",),
    "load_tests/path/application.py": ("load_tests/path/test_command.py",),
    "load_tests/plots.py": ("load_tests/http/test_load.py",),
    "load_tests/simulator/calibrate/points.py": ("load_tests/simulator/calibrate/test_measure.py",),
    "load_tests/simulator/served_log.py": ("load_tests/simulator/test_replay.py",),
    "load_tests/simulator/step_tables.py": ("load_tests/simulator/calibrate/test_calibration.py",),
    "load_tests/traffic/tables.py": ("load_tests/traffic/test_lengths.py",),
    "load_tests/whatif/knobs.py": ("load_tests/whatif/test_questions.py",),
    "load_tests/whatif/live.py": ("load_tests/whatif/test_validate.py",),
    "load_tests/whatif/plots.py": ("load_tests/whatif/test_questions.py",),
    "load_tests/whatif/replays.py": ("load_tests/whatif/test_fleet.py",),
    "load_tests/whatif/report.py": ("load_tests/whatif/test_questions.py",),
    "load_tests/whatif/settings.py": ("load_tests/whatif/test_questions.py",),
    "load_tests/whatif/tornado.py": ("load_tests/whatif/test_questions.py",),
    "load_tests/whatif/workloads.py": ("load_tests/whatif/test_modern.py",),
    "load_tests/work.py": ("load_tests/test_local_engine.py",),
}
# tests of what several modules do together: folders, and single test modules
FEATURES = (
    "tests/app/api/",
    "tests/app/fuzz/",
    "tests/app/models/published/",
    "tests/app/serve/test_changing_replicas.py",
    "tests/app/settings/test_config_files.py",
    "tests/app/with_engine/",
    "tests/clients/",
    "tests/cluster/",
    "tests/deployed/",
    "tests/engine/core/test_ends.py",
    "tests/engine/core/test_found_outputs.py",
    "tests/engine/core/test_long_prompts.py",
    "tests/engine/core/test_preempted_groups.py",
    "tests/engine/core/test_properties.py",
    "tests/engine/core/test_resumed_groups.py",
    "tests/engine/core/test_transitions.py",
    "tests/engine/model/test_decoder_calls.py",
    "tests/engine/model/test_gpu_models.py",
    "tests/engine/model/test_models.py",
    "tests/engine/runtime/client/test_client_prefixes.py",
    "tests/engine/runtime/client/test_open_requests_aborts.py",
    "tests/engine/runtime/test_gang_processes.py",
    "tests/engine/runtime/replica/watch/test_gang_keeper_processes.py",
    "tests/engine/runtime/replica/test_supervisor_health.py",
    "tests/engine/runtime/test_swap_survival.py",
    "tests/engine/whole/",
    "tests/engine/worker/test_gpu.py",
    "tests/fakes/",
    "tests/mutation/",
    "tests/test_architecture.py",
    "tests/test_assertions.py",
    "tests/test_doc_blocks.py",
    "tests/test_docs.py",
    "tests/test_in_turn.py",
    "tests/test_mirror.py",
    "tests/test_names.py",
    "tests/test_packages.py",
    "tests/test_troubleshooting.py",
    "tests/test_words.py",
    "tests/kernels/cpu/test_threads.py",
    "tests/kernels/cpu/test_tiles.py",
)


def modules(*packages: str) -> list[str]:
    return [path for path in sources(*packages) if not path.endswith("/__init__.py")]


def mirror_of(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"tests/{folder}/test_{name.removeprefix('__').replace('__.', '.')}"


@cache
def all_modules() -> dict[str, str]:
    return {module_name(path): path for path in sources(*OURS, "tests")}


@cache
def directly_imported(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    texts = {str(node.value) for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    # a module that is named in full is imported when it is needed
    named = {text.partition(":")[0] for text in texts} & all_modules().keys()
    found = {module_of(name, all_modules()) for name in imports(path)} | named
    return frozenset(all_modules()[module] for module in found - {""})


def imported(path: str) -> Iterator[str]:
    """Yield what a module imports, itself or through what it imports; a package counts whole."""
    seen, waiting = {path}, [path]
    while waiting:
        for other in directly_imported(waiting.pop()) - seen:
            seen.add(other)
            waiting.append(other)
            yield other


def test_each_module_has_its_tests() -> None:
    without = {path for path in modules(*OURS) if not (ROOT / mirror_of(path)).exists()}
    assert without == TESTED_ELSEWHERE.keys()


def test_what_is_tested_elsewhere_is_imported_there() -> None:
    assert not [
        (path, test)
        for path, tests in TESTED_ELSEWHERE.items()
        for test in tests
        if path not in imported(f"tests/{test}")
    ]


def test_each_test_module_mirrors_a_module_or_is_of_a_feature() -> None:
    mirrored = {mirror_of(module) for module in modules(*OURS)}
    of_tests = [path for path in modules("tests") if "/test_" in path]
    assert not [path for path in of_tests if (path in mirrored) == path.startswith(FEATURES)]


def test_every_feature_has_tests() -> None:
    for name in FEATURES:
        assert any(path.startswith(name) for path in modules("tests")), name
