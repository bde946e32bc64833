import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ConfigError
from engine.model_files import (
    INDEX_FILE,
    SINGLE_FILE,
    TensorInfo,
    encode_header,
    find_weights,
    read_header,
)
from tests.app.models.checkpoints import write_sharded


def entry(
    start: int = 0, end: int = 8, shape: tuple[int, ...] = (2,), dtype: str = "F32"
) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def raw(header: Any, data_bytes: int, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(data_bytes)


def test_reads_what_the_reference_implementation_writes(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tensors = {
        "x": torch.zeros(2, 3, dtype=torch.bfloat16),
        "y": torch.zeros(5),
        "z": torch.ones(()),
    }
    save_file(tensors, path, metadata={"a": "b"})
    header = read_header(path)
    assert {name: info.shape for name, info in header.items()} == {"x": (2, 3), "y": (5,), "z": ()}
    assert header["x"].dtype == "BF16"


def test_the_reference_implementation_reads_what_we_write(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    data = struct.pack("<3f", 1, 2, 3)
    path.write_bytes(encode_header({"x": TensorInfo("F32", (3,), 0, 12)}) + data)
    assert load_file(path)["x"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\0",
        raw({}, 0, length=1 << 62),
        raw({"x": entry()}, 8, length=1000),
        raw(b"not json", 0),
        raw(b"[]", 0),
        raw(b"[" * 100_000, 0),
        raw({"x": 3}, 0),
        raw({"x": {"dtype": "F32"}}, 0),
        raw({"x": entry(dtype="F31")}, 8),
        raw({"x": entry(-8, 0)}, 8),
        raw({"x": entry(shape=(-1,))}, 8),
        raw({"x": entry(shape=(3,))}, 8),
        raw({"x": entry(0, 16)}, 8),
        raw({"x": entry()}, 7),
        raw({"x": entry()}, 9),
        raw({"x": entry(), "y": entry(4, 12)}, 12),
        raw({"x": entry(), "y": entry(12, 20)}, 20),
        raw({"x": entry(0.0, 8.0)}, 8),  # type: ignore[arg-type]
        raw({"x": entry(True, 8)}, 8),
        raw({"x": entry(shape=(1 << 200,))}, 8),
    ],
)
def test_a_damaged_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"bad\.safetensors is damaged"):
        read_header(path)


def test_every_cut_of_a_good_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.safetensors"
    whole = raw({"x": entry()}, 8)
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match="is damaged"):
            read_header(path)


def test_shards_are_found_through_the_index(tmp_path: Path) -> None:
    index = write_sharded(tmp_path)
    found = find_weights(tmp_path)
    assert {name: path.name for name, (path, _) in found.items()} == index


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    shard = sorted(set(write_sharded(tmp_path).values()))[1]
    (tmp_path / shard).unlink()
    with pytest.raises(ConfigError, match=rf"lacks {shard} \(1 of 2 shards\)"):
        find_weights(tmp_path)


def test_a_tensor_that_the_index_promises_in_vain_is_named(tmp_path: Path) -> None:
    index = write_sharded(tmp_path) | {"ghost": "model-00001-of-00002.safetensors"}
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": index}))
    with pytest.raises(ConfigError, match="lacks tensor 'ghost'"):
        find_weights(tmp_path)


@pytest.mark.parametrize(
    "content",
    ["", "{}", '{"weight_map": 3}', '{"weight_map": {"x": "../y"}}', '{"weight_map": {"x": "."}}'],
)
def test_a_damaged_index_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / INDEX_FILE).write_text(content)
    with pytest.raises(ConfigError, match=INDEX_FILE):
        find_weights(tmp_path)


def test_pickled_weights_are_never_taken(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin only; of pickled"):
        find_weights(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"neither {SINGLE_FILE} nor"):
        find_weights(tmp_path)
