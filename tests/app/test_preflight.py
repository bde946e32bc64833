import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.preflight import check, check_file
from app.settings.config import parse_config
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.model_files import SINGLE_FILE
from tests import ROOT
from tests.app.models.checkpoints import write_model


def checked(folder: Path, **args: Any) -> EngineConfig:
    return check(parse_config({"model": str(folder), "device": "cpu", "kv_cache_gib": 0.01} | args))


def write_yaml(path: Path, args: Any) -> Path:
    application = {"name": "llm", "import_path": "app.main:build", "args": args}
    # every JSON document is YAML
    path.write_text(json.dumps({"applications": [application]}))
    return path


def test_a_good_folder_gives_the_engines_settings(tmp_path: Path) -> None:
    engine = checked(write_model(tmp_path))
    assert (engine.model_path, engine.scheduler.max_model_len) == (str(tmp_path), 64)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "no tokenizer.json"),
        (
            lambda folder: (folder / "generation_config.json").write_text('{"top_p": 2}'),
            "generation_config.json: top_p is 2",
        ),
        (lambda folder: (folder / SINGLE_FILE).unlink(), "neither model.safetensors nor"),
        (lambda folder: (folder / SINGLE_FILE).write_bytes(b"123"), "is damaged"),
        (lambda folder: (folder / SINGLE_FILE).rename(folder / "model.bin"), "model.bin only"),
    ],
)
def test_what_is_wrong_with_a_folder_is_found(spoil: Any, message: str, tmp_path: Path) -> None:
    spoil(write_model(tmp_path))
    with pytest.raises(ConfigError) as caught:
        checked(tmp_path)
    assert message in str(caught.value)


def test_traces_must_be_writable_before_anything_starts(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m")
    checked(model, flight_recorder={"folder": str(tmp_path / "new" / "traces")})
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"flight_recorder\.folder .*/file/traces cannot be made"):
        checked(model, flight_recorder={"folder": str(tmp_path / "file" / "traces")})


def test_where_no_engine_runs_weights_to_fetch_are_not_missed(tmp_path: Path) -> None:
    store = write_model(tmp_path / "store")
    weights = (store / SINGLE_FILE).rename(tmp_path / "weights")
    options = {"device": "cpu", "kv_cache_gib": 0.01, "cache_folder": str(tmp_path / "cache")}
    config = parse_config({"model": f"file://{store}"} | options)
    engine = check(config, with_weights=False)
    assert engine.model.vocab_size == 32
    with pytest.raises(ConfigError, match=r"neither model\.safetensors nor"):
        check(config)
    # what is here is checked nevertheless
    (store / SINGLE_FILE).write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ConfigError, match="is damaged"):
        check(config)
    with pytest.raises(ConfigError, match="is damaged"):
        check(config, with_weights=False)
    # nobody fetches a local folder
    (store / SINGLE_FILE).unlink()
    with pytest.raises(ConfigError, match=r"neither model\.safetensors nor"):
        check(parse_config({"model": str(store)} | options), with_weights=False)


def test_dummy_weights_need_no_files(tmp_path: Path) -> None:
    (write_model(tmp_path) / SINGLE_FILE).unlink()
    assert checked(tmp_path, load_format="dummy").load_format == "dummy"


def test_more_memory_than_the_machine_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"KV pool do not fit .* lower kv_cache_gib"):
        checked(write_model(tmp_path), num_blocks=(1 << 31) - 1)


def test_the_memory_of_other_nodes_is_not_known(tmp_path: Path) -> None:
    num_blocks = (1 << 31) - 1
    spread = checked(write_model(tmp_path), num_blocks=num_blocks, placement_strategy="SPREAD")
    assert spread.num_blocks == num_blocks


@pytest.mark.parametrize(
    "content", [None, "", "3", "a: [", "applications: 3", "applications: [{}]"]
)
def test_a_file_that_is_not_for_serve_is_refused(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"serve\.yaml"):
        check_file(path)


def test_an_error_names_file_and_application(tmp_path: Path) -> None:
    path = write_yaml(tmp_path / "serve.yaml", {"blok_size": 3})
    with pytest.raises(ConfigError, match=r"serve\.yaml, application 'llm': unknown option"):
        check_file(path)


def test_args_that_are_not_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="args is"):
        check_file(write_yaml(tmp_path / "serve.yaml", [3]))


def test_arguments_of_the_scaling_policy_are_checked(tmp_path: Path) -> None:
    args = {"model": str(write_model(tmp_path / "m")), "device": "cpu", "kv_cache_gib": 0.01}
    path = write_yaml(tmp_path / "serve.yaml", args)
    content = json.loads(path.read_text())
    policy = {"policy_function": "app.serve.scaling:EngineScaling", "policy_kwargs": {"usage": 0.7}}
    scaling = {"autoscaling_config": {"policy": policy}}
    content["applications"][0]["deployments"] = [{"name": "Engine", **scaling}]
    path.write_text(json.dumps(content))
    check_file(path)
    policy["policy_kwargs"] = {"use": 0.7}
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"serve\.yaml, application 'llm': .* unknown 'use'"):
        check_file(path)


def test_the_command_ends_with_one_message_and_without_torch_or_ray(tmp_path: Path) -> None:
    good = write_yaml(
        tmp_path / "good.yaml",
        {"model": str(write_model(tmp_path / "m")), "device": "cpu", "kv_cache_gib": 0.01},
    )
    bad = write_yaml(tmp_path / "bad.yaml", {"model": "./no/such/folder"})
    code = (
        "import sys\n"
        "from app.preflight import main\n"
        "code = main()\n"
        "assert not {'torch', 'ray', 'transformers'} & sys.modules.keys()\n"
        "sys.exit(code)\n"
    )

    def run(path: Path) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", code, str(path)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    assert run(good) == (0, "")
    exit_code, output = run(bad)
    assert exit_code == 1
    assert output.count("\n") == 1
    assert output.startswith(f"error: {bad}, application 'llm': model './no/such/folder'")
