import subprocess
import sys
from pathlib import Path

import pytest
import torch

from app.models.checkpoint import check_weights
from app.models.manifest import write_manifest
from app.models.model_store import commit_of, is_local, resolve, verify
from engine.errors import ConfigError
from engine.model_config import read_model_config
from tests import ROOT
from tests.app.models.checkpoints import write_model
from tests.app.models.conversion.gguf_files import write_gguf
from tests.app.models.conversion.test_pickled_weights import random_weights


def test_a_folder_that_exists_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert resolve("org/name", tmp_path) == tmp_path / "org" / "name"
    assert resolve(str(tmp_path), tmp_path) == tmp_path


def test_home_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m").mkdir()
    assert resolve("~/m", tmp_path) == tmp_path / "m"


@pytest.mark.parametrize("model", ["./none", "/none/at/all", "~/none", "a/b/c", "-x", "a b"])
def test_what_is_neither_folder_nor_hub_id_is_refused(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    with pytest.raises(ConfigError, match="no such folder, and it is not a hub id"):
        resolve(model, tmp_path)


def test_a_file_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ConfigError, match="is a file"):
        resolve(str(tmp_path / "model.safetensors"), tmp_path)


def run(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(home), "PATH": "", "HOME": str(home)}
    command = [sys.executable, "-m", "app.models.model_store", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def cache_hub_model(home: Path) -> Path:
    """Lay out a fetched repository as the hub's client does."""
    repository = home / "hub" / "models--org--name"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0" * 40)
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir()
    return write_model(snapshot)


def test_a_hub_model_that_was_fetched_before_needs_no_network(tmp_path: Path) -> None:
    snapshot = cache_hub_model(tmp_path)
    done = run("org/name", home=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, str(snapshot))


def test_a_hub_model_that_cannot_be_had_is_one_clear_message(tmp_path: Path) -> None:
    done = run("org/absent", home=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "model 'org/absent': there is no such folder" in done.stderr
    assert "set 'model' to 'embedded'" in done.stderr


def test_a_revision_names_the_commit_that_is_served(tmp_path: Path) -> None:
    snapshot = cache_hub_model(tmp_path)
    repository = snapshot.parent.parent
    old = write_model(repository / "snapshots" / ("1" * 40))
    (repository / "refs" / "v1").write_text("1" * 40)
    for revision in ("v1", "1" * 40):
        done = run("org/name", "--revision", revision, home=tmp_path)
        assert (done.returncode, done.stdout.strip()) == (0, str(old))
    assert run("org/name", "--revision", "v2", home=tmp_path).returncode == 1


def test_only_what_came_from_the_hub_has_a_commit(tmp_path: Path) -> None:
    folder = tmp_path / ("1" * 40)
    folder.mkdir()
    assert commit_of("org/name", folder) == "1" * 40
    # a snapshot that is named as a folder is a folder
    assert commit_of(str(folder), folder) is None
    assert commit_of("org/name", tmp_path) is None


@pytest.mark.parametrize("model", [".", "embedded", "memory://bucket/model"])
def test_only_hub_models_have_revisions(model: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="revision 'v1' is for models of the hub"):
        resolve(model, tmp_path, revision="v1")


@pytest.mark.parametrize("with_weights", [False, True])
def test_weights_are_fetched_only_where_they_are_needed(
    with_weights: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def snapshot_download(repo_id: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    resolve("org/name", tmp_path, with_weights=with_weights)
    assert ("*.safetensors" in asked[0], "*.json" in asked[0]) == (with_weights, True)
    bucket = write_model(tmp_path / "bucket")
    folder = resolve(f"file://{bucket}", tmp_path / "cache", with_weights=with_weights)
    assert (folder / "model.safetensors").exists() == with_weights
    assert (folder / "config.json").read_bytes() == (bucket / "config.json").read_bytes()


def test_pickled_weights_are_fetched_only_where_there_are_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write_model(tmp_path / "store")
    (store / "pytorch_model.bin").write_bytes(b"superfluous")
    folder = resolve(f"file://{store}", tmp_path / "cache")
    assert not (folder / "pytorch_model.bin").exists()
    (store / "model.safetensors").unlink()
    torch.save(random_weights(store), store / "pytorch_model.bin")
    folder = resolve(f"file://{store}", tmp_path / "other")
    check_weights(folder, read_model_config(folder))
    asked: list[list[str]] = []

    def snapshot_download(repo_id: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        return str(store)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    resolve("org/name", tmp_path / "cache")
    assert ["pytorch_model*.bin" in patterns for patterns in asked] == [False, True]


def test_a_converted_hub_model_keeps_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / ("0" * 40)
    torch.save(random_weights(snapshot), snapshot / "pytorch_model.bin")
    (snapshot / "tokenizer.json").write_text("{}")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *args, **kw: str(snapshot))
    folder = resolve("org/name", tmp_path / "cache")
    assert folder.parent == tmp_path / "cache" / "models"
    assert commit_of("org/name", folder) == "0" * 40


def test_a_gguf_file_is_named_by_its_path_its_address_or_behind_its_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0" * 40
    source = tmp_path / commit / "m.gguf"
    source.parent.mkdir()
    write_gguf(source)
    asked: list[tuple[str, list[str]]] = []

    def snapshot_download(repo_id: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((repo_id, allow_patterns))
        return str(source.parent)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    for model in (str(source), f"file://{source}", "org/name/m.gguf"):
        folder = resolve(model, tmp_path / "cache")
        check_weights(folder, read_model_config(folder))
    assert asked == [("org/name", ["m.gguf"])]
    assert commit_of("org/name/m.gguf", folder) == commit


def test_only_folders_of_this_machine_are_local(tmp_path: Path) -> None:
    assert is_local(str(tmp_path))
    assert not is_local(str(tmp_path / "none"))
    assert not is_local("embedded")
    assert not is_local(f"file://{tmp_path}")


def test_the_command_prints_the_folder_alone(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    done = run(str(folder), home=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{folder}\n", "")


def test_the_full_check_finds_a_changed_byte(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    verify(folder)
    write_manifest(folder, source="test")
    verify(folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    with pytest.raises(ConfigError, match=r"model\.safetensors changed"):
        verify(folder)
    done = run(str(folder), "--verify", home=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")


def test_a_folder_that_may_not_be_entered_is_a_mistake_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, **options: object) -> None:
        # as the system does for whoever is not root
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(ConfigError, match="/models/x' cannot be looked at: Permission denied"):
        resolve("/models/x", tmp_path)
