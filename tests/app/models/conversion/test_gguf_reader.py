from pathlib import Path

import pytest

from app.models.conversion.gguf_reader import GgufModel, all_parts, gguf_files
from engine.errors import ConfigError
from tests.app.models.conversion.gguf_files import TEMPLATE, write_gguf


def touch(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).touch()
    return folder


def test_a_file_or_the_only_one_of_a_folder(tmp_path: Path) -> None:
    assert gguf_files(tmp_path) == []
    touch(tmp_path, "a.gguf", "mmproj-a.gguf", "imatrix.gguf", "config.json")
    assert gguf_files(tmp_path) == gguf_files(tmp_path / "a.gguf") == [tmp_path / "a.gguf"]
    assert gguf_files(tmp_path / "config.json") == []


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_other_weights_come_first(name: str, tmp_path: Path) -> None:
    assert gguf_files(touch(tmp_path, "a.gguf", name)) == []


def test_of_several_one_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\(a\.gguf, b\.gguf\); give the path of one"):
        gguf_files(touch(tmp_path, "a.gguf", "b.gguf"))


def test_parts_belong_together(tmp_path: Path) -> None:
    parts = [f"m-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    touch(tmp_path, *parts)
    paths = [tmp_path / name for name in parts]
    assert gguf_files(tmp_path) == gguf_files(paths[1]) == paths
    paths[2].unlink()
    with pytest.raises(ConfigError, match=r"lacks m-00003-of-00003\.gguf \(1 of 3 parts\)"):
        gguf_files(tmp_path)
    paths[0].unlink()
    with pytest.raises(ConfigError, match="lacks the first part"):
        gguf_files(tmp_path)


def test_a_pattern_names_all_parts() -> None:
    assert all_parts("Q8/m-00001-of-00003.gguf") == "Q8/m-*-of-00003.gguf"
    assert all_parts("m.gguf") == "m.gguf"


def test_metadata_is_read_by_name(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    model = GgufModel([tmp_path / "m.gguf"])
    assert (model.architecture, model.of_model("block_count")) == ("llama", 2)
    assert model.of_tokenizer("eos_token_id") == 2
    assert model.of_model("none", 7) == 7
    assert dict(model.chat_templates()) == {"default": TEMPLATE}
    with pytest.raises(ConfigError, match=r"lacks the field 'llama\.none'"):
        model.need("llama.none")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    whole = (tmp_path / "m.gguf").read_bytes()
    for length in (2, 100, len(whole) // 2):
        (tmp_path / "m.gguf").write_bytes(whole[:length])
        with pytest.raises(ConfigError, match=r"m\.gguf cannot be read as GGUF"):
            GgufModel([tmp_path / "m.gguf"])
