from pathlib import Path

import pytest

from app.command.__main__ import main
from app.models.manifest import write_manifest
from tests.app.models.checkpoints import write_model


def run(cache: Path, *words: str) -> int:
    return main(["models", *words, "--cache", str(cache)])


def test_cached_models_are_listed_verified_and_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "list") == 0
    folder = tmp_path / "models" / "m-1"
    folder.mkdir(parents=True)
    (folder / "x.bin").write_bytes(bytes(2_000_000))
    write_manifest(folder, source="s")
    (folder.parent / ".building").mkdir()
    assert run(tmp_path, "list") == 0
    assert capsys.readouterr().out.split() == ["m-1", "2", "MB"]
    assert run(tmp_path, "verify") == 0
    assert capsys.readouterr().out == "m-1 is whole\n"
    (folder / "x.bin").write_bytes(bytes(1_999_999) + b"x")
    assert run(tmp_path, "verify", "m-1") == 1
    assert "x.bin changed" in capsys.readouterr().err
    assert run(tmp_path, "rm", "m-1") == 0
    assert not folder.exists()
    assert run(tmp_path, "rm", "m-1") == 1
    assert "there is none" in capsys.readouterr().err


def test_a_model_is_fetched_to_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "m")
    assert run(tmp_path, "fetch", str(model)) == 0
    assert capsys.readouterr().out == f"{model.resolve()}\n"
    assert run(tmp_path, "fetch", str(tmp_path / "none")) == 1
