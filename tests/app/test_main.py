import hashlib
from pathlib import Path

import pytest
from ray.serve.exceptions import RayServeException

from app.main import api_settings, build, stream_interval_s
from app.serve.deployments import gang_options, resources
from app.settings.config import parse_config
from engine.config import Device
from engine.errors import ConfigError
from tests.fakes.scripted_worker import engine_config


def test_a_bad_option_is_one_message() -> None:
    with pytest.raises(RayServeException, match="did you mean 'block_size'"):
        build({"blok_size": 16})


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


@pytest.mark.parametrize(
    ("args", "device", "interval_s"),
    [
        ({}, "cpu", 0.05),
        ({}, "cuda", 0.02),
        ({"stream_interval_ms": 0}, "cpu", 0.0),
        ({"stream_interval_ms": 100.0}, "cuda", 0.1),
    ],
)
def test_chunks_come_less_often_where_the_cpu_runs_the_model(
    args: dict[str, float], device: Device, interval_s: float
) -> None:
    assert stream_interval_s(parse_config(args), engine_config(device=device)) == interval_s
