import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from app.models.checkpoint import check_weights, expected_tensors
from app.models.conversion.pickled_weights import convert_pickled, pickled_files
from engine.errors import ConfigError
from engine.model_config import read_model_config
from engine.model_files import SINGLE_FILE
from tests.app.models.checkpoints import CONFIG

Weights = dict[str, torch.Tensor]


def random_weights(folder: Path, dtype: torch.dtype = torch.float16, **changes: Any) -> Weights:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=generator).to(dtype)
        for name, shape in expected_tensors(read_model_config(folder)).items()
    }


def converted(source: Path, target: Path) -> list[tuple[int, int]]:
    target.mkdir()
    (target / "config.json").write_bytes((source / "config.json").read_bytes())
    seen: list[tuple[int, int]] = []
    convert_pickled(source, target, lambda done, total: seen.append((done, total)))
    check_weights(target, read_model_config(target))
    return seen


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_archive", [True, False])
def test_values_and_dtypes_stay(is_archive: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    weights = random_weights(tmp_path, dtype)
    # the newer form can be mapped, the older is a stream of pickles
    torch.save(weights, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=is_archive)
    seen = converted(tmp_path, tmp_path / "out")
    ours = load_file(tmp_path / "out" / SINGLE_FILE)
    assert ours.keys() == weights.keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in weights.items())
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]


def test_copies_of_the_embedding_and_views_take_no_space_twice(tmp_path: Path) -> None:
    weights = random_weights(tmp_path, tie_word_embeddings=True)
    embedding = weights["model.embed_tokens.weight"]
    # parts of a larger tensor, and one that is stored transposed
    whole = torch.stack([embedding, embedding * 2])
    name = "model.layers.0.mlp.gate_proj.weight"
    stored = weights | {
        "model.embed_tokens.weight": whole[0],
        "lm_head.weight": whole[0],
        name: weights[name].T.contiguous().T,
    }
    torch.save(stored, tmp_path / "pytorch_model.bin")
    converted(tmp_path, tmp_path / "out")
    ours = load_file(tmp_path / "out" / SINGLE_FILE)
    assert "lm_head.weight" not in ours
    assert all(torch.equal(ours[name], tensor) for name, tensor in weights.items())


def sharded(folder: Path) -> Weights:
    weights = random_weights(folder)
    names = sorted(weights)
    index: dict[str, str] = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"pytorch_model-{number:05}-of-00002.bin"
        torch.save({name: weights[name] for name in part}, folder / file)
        index |= dict.fromkeys(part, file)
    text = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "pytorch_model.bin.index.json").write_text(text)
    return weights


def test_several_files_stay_several(tmp_path: Path) -> None:
    weights = sharded(tmp_path)
    converted(tmp_path, tmp_path / "out")
    parts = sorted((tmp_path / "out").glob("*.safetensors"))
    assert [path.name for path in parts] == [
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
    ]  # fmt: skip
    ours = load_file(parts[0]) | load_file(parts[1])
    assert all(torch.equal(ours[name], tensor) for name, tensor in weights.items())


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(ConfigError, match=r"lacks pytorch_model-00002-of-00002\.bin \(1 of 2"):
        pickled_files(tmp_path)
    (tmp_path / "pytorch_model.bin.index.json").write_text("{}")
    with pytest.raises(ConfigError, match="no weight_map"):
        pickled_files(tmp_path)


def test_a_full_disk_is_noticed_before_a_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        free = 10

    random_weights(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"not looked at")
    monkeypatch.setattr("shutil.disk_usage", lambda path: Full)
    with pytest.raises(ConfigError, match="set cache_folder to another disk"):
        converted(tmp_path, tmp_path / "out")


class RunsCode:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("is_archive", [True, False])
def test_code_in_a_file_is_never_run(is_archive: bool, tmp_path: Path) -> None:
    content = random_weights(tmp_path) | {"x": RunsCode(tmp_path / "harm")}
    torch.save(content, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=is_archive)
    with pytest.raises(ConfigError, match="code, which is never run"):
        converted(tmp_path, tmp_path / "out")
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], "not a table of tensors"),
        ({"model": {}}, "not a table of tensors"),
        ({"x": torch.zeros(2, dtype=torch.int8)}, "has dtype torch.int8"),
        (None, "damaged"),
    ],
)
def test_what_holds_no_weights_is_refused(content: Any, message: str, tmp_path: Path) -> None:
    random_weights(tmp_path)
    if content is None:
        (tmp_path / "pytorch_model.bin").write_bytes(b"PK\3\4 cut short")
    else:
        torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=message):
        converted(tmp_path, tmp_path / "out")
