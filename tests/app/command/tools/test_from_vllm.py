import pytest

from app.command.tools.from_vllm import as_config, translate
from engine.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "args"),
    [
        ("m -tp 2 --gpu-memory-utilization 0.8", {"tensor_parallel_size": 2}),
        ("--model m --swap-space 4 --gpu-memory-utilization=1", {"swap_gib": 4.0}),
        ("m --kv-cache-memory-bytes 1073741824", {"kv_cache_gib": 1.0}),
        ("m --no-enable-prefix-caching --enable-log-requests", {"prefix_cache": False}),
        ("m --enable-prefix-caching --max_model_len 99", {"prefix_cache": True}),
        ("m --load-format auto --generation-config vllm", {"generation_config": "ignore"}),
        ("m --otlp-traces-endpoint http://x:1", {"tracing": {"endpoint": "http://x:1"}}),
        ("m --served-model-name 7", {"served_model_name": "7"}),
    ],
)
def test_what_means_the_same_is_taken(words: str, args: dict[str, object]) -> None:
    found = translate(words.split())
    assert not found.problems
    assert found.args["model"] == "m"
    assert args.items() <= found.args.items()


def test_what_has_no_place_is_said_with_what_to_do() -> None:
    found = translate(
        ["m", "--trust-remote-code", "--data-parallel-size", "2", "--new", "--port=1"]
    )
    assert [problem.partition(":")[0] for problem in found.problems] == [
        "--trust-remote-code",
        "--data-parallel-size",
        "--new",
    ]
    assert found.http == {"port": 1}


def test_values_that_no_option_takes_are_refused() -> None:
    with pytest.raises(ConfigError, match="block_size is 'x'"):
        translate(["m", "--block-size", "x"])


def test_a_base_must_have_one_application() -> None:
    with pytest.raises(ConfigError, match="has 0 applications"):
        as_config(translate(["m"]), {})
