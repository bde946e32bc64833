import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from ray.serve.exceptions import RayServeException

from app.main import (
    api_settings,
    build,
    client_limits,
    make_http_app,
    page_options,
    revision_of,
    tracing_options,
    whole_folder,
    with_tokenizer,
)
from app.models.manifest import write_manifest
from app.preflight import check
from app.serve.deployments import draining, gang_options, resources
from app.settings.config import parse_config
from engine.config import Device
from engine.errors import ConfigError
from engine.runtime.replica.client_session import LEASE_S
from tests.app.models.checkpoints import write_model
from tests.app.text.tokenizers import CHATML, byte_level_backend
from tests.fakes.scripted_engine import FakeEngineClient
from tests.fakes.scripted_worker import engine_config


def test_a_bad_option_is_one_message() -> None:
    with pytest.raises(RayServeException, match="did you mean 'block_size'"):
        build({"blok_size": 16})


def test_nodes_without_an_engine_fetch_no_weights(tmp_path: Path) -> None:
    store = write_model(tmp_path / "store", vocab_size=700)
    byte_level_backend().save(str(store / "tokenizer.json"))
    args = {"model": f"file://{store}", "device": "cpu", "kv_cache_gib": 0.01}
    application: Any = build(args | {"cache_folder": str(tmp_path / "build")})
    engine, make_app, *_ = application._bound_deployment.init_args
    locate = {
        # which is compared with its manifest
        "engine": engine._bound_deployment.init_args[2].args[0],
        "ingress": make_app.keywords["locate"],
    }
    assert not list(tmp_path.glob("build/models/*/*.safetensors"))
    for node, has_weights in {"ingress": False, "engine": True}.items():
        # as on a node of its own
        found = locate[node].func(f"file://{store}", tmp_path / node, **locate[node].keywords)
        assert (found / "tokenizer.json").exists()
        assert (found / "model.safetensors").exists() == has_weights


def test_a_hub_model_without_a_revision_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    commit = "0123456789abcdef" * 2 + "01234567"
    folder = tmp_path / commit
    for options, expected, num_warnings in (
        ({"model": "org/name"}, commit, 1),
        ({"model": "org/name", "revision": "v1"}, commit, 0),
        ({"model": str(tmp_path)}, None, 0),
    ):
        caplog.clear()
        assert revision_of(parse_config(options), folder) == expected
        assert len(caplog.records) == num_warnings
        assert all(commit in record.getMessage() for record in caplog.records)


def test_weights_that_have_changed_are_not_loaded(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    write_manifest(folder, source="test")
    assert whole_folder(lambda: folder) == folder
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.safetensors changed"):
        whole_folder(lambda: folder)


def test_every_end_that_a_folder_names_is_an_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_model(tmp_path, eos_token_id=0, vocab_size=700)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 0]}')
    byte_level_backend().save(str(tmp_path / "tokenizer.json"))
    names = {"eos_token": "<|im_start|>", "chat_template": CHATML}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
    args = {"model": str(tmp_path), "device": "cpu", "kv_cache_gib": 0.01}
    config = with_tokenizer(check(parse_config(args)))
    # <|endoftext|>, a token, <|im_start|>, <|im_end|>
    assert config.scheduler.eos_token_ids == config.model.eos_token_ids == (0, 5, 1, 2)
    with caplog.at_level(logging.INFO):
        make_http_app(
            FakeEngineClient([]),
            locate=lambda: tmp_path,
            settings=api_settings(parse_config({}), config),
            end_token_ids=config.scheduler.eos_token_ids,
        )
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("model_ends token_ids=[0, 5, 1, 2] spelled=['<|endoftext|>', ")


def test_the_folder_s_sampling_defaults_are_the_api_s(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_model(tmp_path)
    byte_level_backend().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "generation_config.json").write_text('{"top_k": 1, "temperature": 0.6}')
    args = {"model": str(tmp_path), "device": "cpu", "kv_cache_gib": 0.01}
    settings = api_settings(parse_config(args), check(parse_config(args)))
    assert settings.sampling_defaults == {"temperature": 0.6, "top_k": 1}
    with caplog.at_level(logging.INFO):
        make_http_app(
            FakeEngineClient([]), locate=lambda: tmp_path, settings=settings, end_token_ids=[]
        )
    assert caplog.records[-1].getMessage() == "sampling_defaults temperature=0.6 top_k=1"


def test_sampling_defaults_of_a_folder_can_be_ignored_but_not_its_ends(tmp_path: Path) -> None:
    write_model(tmp_path)
    byte_level_backend().save(str(tmp_path / "tokenizer.json"))
    bad_and_good = {"top_p": 7, "eos_token_id": [3, 4]}
    (tmp_path / "generation_config.json").write_text(json.dumps(bad_and_good))
    args = {"model": str(tmp_path), "device": "cpu", "kv_cache_gib": 0.01}
    config = parse_config(args | {"generation_config": "ignore"})
    engine = check(config)
    assert api_settings(config, engine).sampling_defaults == {}
    assert engine.model.eos_token_ids == (3, 4)


def test_an_end_without_a_row_in_the_embedding_is_none(tmp_path: Path) -> None:
    write_model(tmp_path, eos_token_id=0, vocab_size=2)
    byte_level_backend().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    config = check(parse_config({"model": str(tmp_path), "device": "cpu", "kv_cache_gib": 0.01}))
    assert with_tokenizer(config).scheduler.eos_token_ids == (0,)


def test_api_keys_are_kept_as_digests(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one\n\n two \n", encoding="utf-8")
    settings = api_settings(parse_config({"api_keys_file": str(keys)}), engine_config())
    assert settings.api_key_sha256 == (
        hashlib.sha256(b"one").digest(),
        hashlib.sha256(b"two").digest(),
    )


@pytest.mark.parametrize("content", [None, "", " \n", b"\xff"])
def test_a_key_file_without_keys_is_refused(tmp_path: Path, content: str | bytes | None) -> None:
    keys = tmp_path / "keys"
    if content is not None:
        keys.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError, match="api_keys_file"):
        api_settings(parse_config({"api_keys_file": str(keys)}), engine_config())


def test_each_rank_has_a_bundle_beside_that_of_the_replica() -> None:
    config = engine_config(ranks=2)
    bundles = resources(config)["placement_group_bundles"]
    assert len(bundles) == 3
    assert sum(bundle["CPU"] for bundle in bundles) <= 1
    assert gang_options(config).num_gpus_per_rank == 0


def test_each_rank_on_a_gpu_machine_has_one() -> None:
    config = engine_config(ranks=2, device="cuda")
    bundles = resources(config)["placement_group_bundles"]
    assert [bundle.get("GPU", 0) for bundle in bundles] == [0, 1, 1]
    assert gang_options(config).num_gpus_per_rank == 1


def test_ranks_share_the_node_of_the_replica_unless_they_may_be_spread() -> None:
    config = engine_config(ranks=2)
    assert resources(config)["placement_group_strategy"] == "STRICT_PACK"
    assert not gang_options(config).spans_nodes
    spread = config.with_options(placement_strategy="SPREAD")
    assert resources(spread)["placement_group_strategy"] == "SPREAD"
    assert gang_options(spread).spans_nodes


@pytest.mark.parametrize(
    ("args", "device", "interval_s", "part_s"),
    [
        ({}, "cpu", 0.05, 1e-3),
        ({}, "cuda", 0.02, 4e-5),
        ({"stream_interval_ms": 0}, "cpu", 0.0, None),
        ({"stream_interval_ms": 100.0}, "cuda", 0.1, None),
    ],
)
def test_chunks_come_less_often_where_the_cpu_runs_the_model(
    args: dict[str, float], device: Device, interval_s: float, part_s: float | None
) -> None:
    limits = client_limits(parse_config(args), engine_config(device=device))
    # what the operator says counts, however many streams are open
    assert (limits.coalesce_s, limits.part_s) == (interval_s, part_s)


def test_serve_ends_a_replica_only_when_its_clients_have_gone_elsewhere() -> None:
    options = draining(30.0)
    # the pins lapse, then the leases
    assert options["graceful_shutdown_timeout_s"] > 30.0 + LEASE_S
    router = options["request_router_config"]
    assert router["request_router_kwargs"] == {"drain_s": 30.0}


def test_keys_of_operators_are_read_as_those_of_tenants(tmp_path: Path) -> None:
    (tmp_path / "operators").write_text("one\n\ntwo\n")
    config = parse_config({"operator_keys_file": str(tmp_path / "operators")})
    write_model(tmp_path)
    byte_level_backend().save(str(tmp_path / "tokenizer.json"))
    args = {"model": str(tmp_path), "device": "cpu", "kv_cache_gib": 0.01}
    settings = api_settings(config, check(parse_config(args)))
    assert settings.operator_key_sha256 == tuple(
        hashlib.sha256(key).digest() for key in (b"one", b"two")
    )
    assert settings.api_key_sha256 == ()
    missing = parse_config({"operator_keys_file": str(tmp_path / "missing")})
    with pytest.raises(ConfigError, match=r"operator_keys_file .*missing cannot be read"):
        api_settings(missing, check(parse_config(args)))


def test_tracing_needs_its_exporter_and_headers_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tracing_options(parse_config({})) is None
    headers = tmp_path / "headers"
    headers.write_text("x-key: a:b\n")
    tracing = {"endpoint": "http://collector/v1/traces", "headers_file": str(headers)}
    options = tracing_options(parse_config({"tracing": tracing}))
    assert options is not None
    assert options.headers == (("x-key", "a:b"),)
    headers.write_text("no colon\n")
    with pytest.raises(ConfigError, match="one `name: value` a line"):
        tracing_options(parse_config({"tracing": tracing}))
    monkeypatch.setattr("app.telemetry.traces.tracing_options.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'pagoda\[otlp\]'"):
        tracing_options(parse_config({"tracing": tracing}))


def test_the_page_is_served_unless_it_is_switched_off() -> None:
    engine = engine_config()
    page = page_options(parse_config({"ui": {"max_viewers": 3, "max_hz": 1.5}}), engine)
    assert page is not None
    assert (page.max_viewers, page.max_hz) == (3, 1.5)
    assert page.facts["block_size"] == engine.block_size
    assert page.facts["has_keys"] is False
    assert ("ui.max_viewers", "3", False) in page.settings
    assert page_options(parse_config({"ui": {"enabled": False}}), engine) is None
