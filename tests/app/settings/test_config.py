from pathlib import Path
from typing import Any

import pytest

from app.settings.config import AppConfig, parse_config
from app.settings.request_options import Limits
from engine.errors import ConfigError


def test_no_option_is_needed() -> None:
    config = parse_config({})
    assert config == AppConfig()
    assert (config.model, config.dtype, config.device) == ("embedded", "auto", "auto")
    assert (config.kv_cache_gib, config.max_model_len, config.num_blocks) == (None, None, None)
    assert (config.swap_gib, config.preemption, config.prefix_cache) == (None, "auto", True)
    assert (config.memory_policy, config.watermark, config.growth_blocks) == ("paged", 0.01, 0.5)
    assert (config.max_overtakes, config.prompt_share) == (0, 0.5)
    assert config.limits == Limits(max_body_mib=4)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"blok_size": 16}, "unknown option 'blok_size'; did you mean 'block_size'?"),
        ({"max_model_length": 16}, "did you mean 'max_model_len'?"),
        ({"max_body_mib": 1}, "did you mean 'limits.max_body_mib'?"),
        ({"limits": {"body_mib": 1}}, "'limits.body_mib'; did you mean 'limits.max_body_mib'?"),
        ({"max_mib": 1}, "did you mean 'flight_recorder.max_mib'?"),
        ({"x y": 1}, "unknown option 'x y'; known are model, "),
        ({"zebra": 1}, "unknown option 'zebra'; known are model, "),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_known_one(
    args: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(args)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("model", ["", 3, None]),
        ("served_model_name", ["", 3, "x" * 257]),
        ("dtype", ["fp8", None]),
        ("device", ["tpu"]),
        ("cors_origins", ["*", None, 3]),
        ("load_format", ["pickle"]),
        ("tensor_parallel_size", [0, 65, 1.5]),
        ("block_size", [0, 257, "16", True]),
        ("num_blocks", [0, -1, 1 << 31]),
        ("kv_cache_gib", [0, -1, float("nan"), float("inf"), "1", 1025]),
        ("gpu_memory_fraction", [0, -1, float("nan"), 1.01, "1"]),
        ("swap_gib", [-1, float("nan"), float("inf"), "1", True, 1025]),
        ("memory_policy", ["pages", True, None]),
        ("preemption", ["kill", True, None]),
        ("watermark", [-0.01, 0.51, float("nan"), "1", True]),
        ("growth_blocks", [-1, 65, float("inf"), "1"]),
        ("max_overtakes", [-1, 4097, 1.5, True]),
        ("prompt_share", [0, 1.01, float("nan"), "1"]),
        ("prefix_cache", ["yes", 1]),
        ("max_num_seqs", [0, 4097]),
        ("max_num_batched_tokens", [0, (1 << 20) + 1]),
        ("inter_token_latency_ms", [0, -1, float("nan"), 60_001, "1"]),
        ("max_model_len", [1, -5, "8k"]),
        ("max_num_waiting", [0, (1 << 20) + 1]),
        ("num_threads", [0, 1025]),
        ("compiled_kernels", ["yes", 1]),
        ("cache_folder", [3]),
        ("unknown_parameters", ["maybe"]),
        ("api_keys_file", [3]),
        ("flight_recorder", [3, {"max_mib": 0}, {"max_mib": float("inf")}, {"folder": 3}]),
        ("limits", [3, {"max_body_mib": 0}, {"max_body_mib": 65}]),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, values: list[Any]) -> None:
    for value in values:
        [bad] = value.values() if isinstance(value, dict) else [value]
        with pytest.raises(ConfigError) as caught:
            parse_config({name: value})
        assert str(caught.value).startswith(name), value
        assert f" is {bad!r:.20}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "nearest"),
    [
        ("memory_policy", "reserved_orcale", "'reserved_oracle'"),
        ("preemption", "recompile", "'recompute'"),
        ("unknown_parameters", "rejct", "'reject'"),
    ],
)
def test_a_misspelt_choice_is_refused_with_the_nearest_one(
    name: str, value: str, nearest: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({name: value})
    assert str(caught.value).endswith(f"; did you mean {nearest}?")


def test_every_bad_option_is_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"block_size is 0.*; max_num_seqs is 0"):
        parse_config({"block_size": 0, "max_num_seqs": 0})


def test_a_long_bad_value_is_not_repeated_in_full() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"block_size": "x" * 10_000})
    assert len(str(caught.value)) < 300


def test_the_served_name_follows_the_model(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    assert parse_config({}).model_id == "SmolLM2-135M-Instruct"
    assert parse_config({"model": str(folder)}).model_id == "my-model"
    (folder / "some.Q8_0.gguf").touch()
    assert parse_config({"model": str(folder / "some.Q8_0.gguf")}).model_id == "some.Q8_0"
    assert parse_config({"model": "org/name"}).model_id == "org/name"
    assert parse_config({"model": "org/name", "served_model_name": "n"}).model_id == "n"


def test_models_are_kept_where_xdg_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert parse_config({}).cache_folder == tmp_path / "pagoda"


def test_origins_are_listed_as_browsers_write_them() -> None:
    origins = ["https://chat.example.com", "http://localhost:3000", "app://obsidian.md", "*"]
    assert parse_config({"cors_origins": origins}).cors_origins == tuple(origins)
    assert parse_config({}).cors_origins == ()


@pytest.mark.parametrize("origin", ["", "chat.example.com", "https://a.example/", 3, None])
def test_what_is_no_origin_is_refused_by_its_place(origin: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^cors_origins\.1 is {origin!r}: "):
        parse_config({"cors_origins": ["*", origin]})
