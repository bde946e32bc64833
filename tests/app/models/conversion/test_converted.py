import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file, save_file

from app.models.checkpoint import check_weights
from app.models.conversion import pickled_weights
from app.models.conversion.converted import converted
from engine.errors import ConfigError
from engine.model_config import read_model_config
from tests import ROOT
from tests.app.models.conversion.gguf_models import TINY_GGUFS, published, write_tiny_gguf
from tests.app.models.conversion.test_pickled_weights import random_weights
from tests.app.models.conversion.test_slow_tokenizer import write_byte_level


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A model as it was published before safetensors: pickled weights, a slow tokenizer."""
    folder = write_byte_level(tmp_path / "old")
    torch.save(random_weights(folder), folder / "pytorch_model.bin")
    (folder / "generation_config.json").write_text('{"top_k": 5}')
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("r")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_a_folder_that_needs_nothing_is_used_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    save_file(random_weights(folder), folder / "model.safetensors")
    (folder / "tokenizer.json").write_text("{}")
    # what is superfluous is not looked at
    (folder / "pytorch_model.bin").write_bytes(b"no weights")
    (folder / "model.gguf").write_bytes(b"no model")
    assert converted(folder, tmp_path / "cache") == folder
    assert not (tmp_path / "cache").exists()


def test_an_old_folder_becomes_a_new_one_once(old: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    folder = converted(old, cache)
    check_weights(folder, read_model_config(folder))
    assert names(folder) == [
        "additional_chat_templates/rag.jinja", "config.json", "generation_config.json",
        "manifest.json", "model.safetensors", "special_tokens_map.json", "tokenizer.json",
        "tokenizer_config.json", "vocab.json",
    ]  # fmt: skip
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert converted(old, cache) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


def test_without_weights_only_texts_are_made(old: Path, tmp_path: Path) -> None:
    folder = converted(old, tmp_path / "cache", with_weights=False)
    assert "tokenizer.json" in names(folder)
    assert "model.safetensors" not in names(folder)
    (old / "tokenizer.json").write_text("{}")
    assert converted(old, tmp_path / "cache", with_weights=False) == old


def test_a_change_of_the_source_is_followed(old: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    folder = converted(old, cache)
    doubled = {name: tensor * 2 for name, tensor in random_weights(old).items()}
    torch.save(doubled, old / "pytorch_model.bin")
    os.utime(old / "pytorch_model.bin", ns=(1, 1))
    assert converted(old, cache) == folder
    ours = load_file(folder / "model.safetensors")
    assert all(torch.equal(ours[name], tensor) for name, tensor in doubled.items())
    (old / "generation_config.json").write_text('{"top_k": 7, "top_p": 0.5}')
    converted(old, cache)
    assert json.loads((folder / "generation_config.json").read_text())["top_k"] == 7


def test_weights_that_need_nothing_are_linked_to(old: Path, tmp_path: Path) -> None:
    save_file(random_weights(old), old / "model.safetensors")
    folder = converted(old, tmp_path / "cache")
    assert (folder / "model.safetensors").readlink() == old / "model.safetensors"
    check_weights(folder, read_model_config(folder))


@pytest.mark.parametrize("split", [False, True])
def test_a_gguf_file_is_a_model(split: bool, tmp_path: Path) -> None:
    tiny = TINY_GGUFS["llama"]
    weights = published(tiny, tmp_path / "published")
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "mmproj-f16.gguf").write_bytes(b"a projector of images")
    parts = [weights]
    if split:
        order = sorted(weights)
        parts = [{n: weights[n] for n in order[::2]}, {n: weights[n] for n in order[1::2]}]
    for number, part in enumerate(parts, start=1):
        name = f"m-{number:05}-of-00002.gguf" if split else "m.gguf"
        write_tiny_gguf(folder / name, tiny, part, GGMLQuantizationType.BF16)
    found = converted(folder, tmp_path / "cache")
    check_weights(found, read_model_config(found))
    assert read_model_config(found).eos_token_ids == (2,)
    by_file = converted(next(folder.glob("m*1*.gguf" if split else "m.gguf")), tmp_path / "cache")
    assert (by_file / "model.safetensors").read_bytes() == (
        found / "model.safetensors"
    ).read_bytes()
    texts = converted(folder, tmp_path / "cache", with_weights=False)
    assert "model.safetensors" not in names(texts)
    assert (texts / "tokenizer.json").read_bytes() == (found / "tokenizer.json").read_bytes()


def test_a_full_disk_is_said_before_anything_is_written(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        free = 10

    monkeypatch.setattr("shutil.disk_usage", lambda path: Full)
    with pytest.raises(ConfigError, match=r"needs 0\.00 GB in .* set cache_folder"):
        converted(old, tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.safetensors*"))


def test_a_process_that_dies_in_the_middle_leaves_nothing_that_is_used(
    old: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    code = (
        "import os\n"
        "from pathlib import Path\n"
        "from app.models.conversion import converted, pickled_weights\n"
        "pickled_weights.write_safetensors = lambda path, *rest: ("
        "path.write_bytes(b'half'), os.kill(os.getpid(), 9))\n"
        f"converted.converted(Path({str(old)!r}), Path({str(cache)!r}))\n"
    )
    with run(code) as process:
        process.communicate(timeout=120)
    assert process.returncode == -9
    assert list(cache.rglob("model.safetensors"))
    folder = converted(old, cache)
    check_weights(folder, read_model_config(folder))
    assert [path.name for path in (cache / "models").iterdir() if path.is_dir()] == [folder.name]


# two processes that build the embedded model take the same lock, and are not slow
@pytest.mark.slow
def test_two_processes_at_once_convert_once(old: Path, tmp_path: Path) -> None:
    code = (
        "import logging, sys\n"
        "from pathlib import Path\n"
        "from app.models.conversion.converted import converted\n"
        "logging.basicConfig(level=logging.INFO)\n"
        f"print(converted(Path({str(old)!r}), Path({str(tmp_path / 'cache')!r})))\n"
    )
    outputs = [process.communicate(timeout=120) for process in [run(code), run(code)]]
    folders = {stdout.strip() for stdout, _ in outputs}
    assert len(folders) == 1
    check_weights(Path(*folders), read_model_config(Path(*folders)))
    assert sum(stderr.count("model_converted") for _, stderr in outputs) == 1


def run(code: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_model_that_is_not_served_is_refused_before_its_weights_are_read(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*arguments: Any) -> Any:
        raise AssertionError("weights were read")

    monkeypatch.setattr(pickled_weights, "_load", load)
    (old / "config.json").write_text('{"architectures": ["BertModel"]}')
    with pytest.raises(ConfigError, match="'BertModel' is not supported"):
        converted(old, tmp_path / "cache")
