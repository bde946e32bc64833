"""The files of a model folder: safetensors headers and which file holds which tensor.

Standard library only, so that a folder can be checked before anything heavy is imported.
Source of the file format: https://huggingface.co/docs/safetensors/index
"""

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ConfigError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

# the limit of the reference implementation
_MAX_HEADER_BYTES = 100_000_000
_LENGTH = struct.Struct("<Q")
_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2,
    "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies: bytes [start, end) after the header of its file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def encode_header(tensors: dict[str, TensorInfo]) -> bytes:
    """Make the start of a safetensors file; the data of the tensors follows it."""
    described: dict[str, Any] = {
        name: {"dtype": info.dtype, "shape": info.shape, "data_offsets": (info.start, info.end)}
        for name, info in tensors.items()
    }
    text = json.dumps({"__metadata__": {"format": "pt"}, **described}).encode()
    # data starts at a multiple of 8 bytes
    text += b" " * (-len(text) % 8)
    return _LENGTH.pack(len(text)) + text


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Read and check the header of a safetensors file.

    Raises:
        ConfigError: if the file is cut short or its header is not valid.
    """
    with path.open("rb") as file:
        prefix = file.read(_LENGTH.size)
        length = _LENGTH.unpack(prefix)[0] if len(prefix) == _LENGTH.size else None
        if length is None or length > min(_MAX_HEADER_BYTES, path.stat().st_size - _LENGTH.size):
            raise _damaged(path, f"its header length {length} does not fit the file")
        text = file.read(length)
    tensors = _parse_header(path, text)
    _check_layout(path, tensors, path.stat().st_size - _LENGTH.size - length)
    return tensors


def find_weights(folder: Path) -> dict[str, tuple[Path, TensorInfo]]:
    """Find the file and the place of every tensor of a model folder.

    Raises:
        ConfigError: if there are no safetensors, or files and index do not agree.
    """
    index = folder / INDEX_FILE
    if index.exists():
        return _find_sharded(folder, _read_index(index))
    single = folder / SINGLE_FILE
    if single.exists():
        return {name: (single, info) for name, info in read_header(single).items()}
    others = sorted(
        path.name for path in folder.glob("*") if path.suffix in (".bin", ".pt", ".pth")
    )
    if others:
        raise ConfigError(
            f"{folder} has weights in {others[0]} only; of pickled weights, which can run code, "
            "only pytorch_model.bin is converted: choose a repository with it or with safetensors"
        )
    raise ConfigError(f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}: not a model folder")


def _damaged(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path} is damaged: {why}; fetch or convert the model again")


def _parse_header(path: Path, text: bytes) -> dict[str, TensorInfo]:
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        return {name: _parse_entry(entry) for name, entry in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"its header cannot be read ({error!r:.200})") from error


def _parse_entry(entry: dict[str, Any]) -> TensorInfo:
    start, end = entry["data_offsets"]
    numbers = (start, end, *entry["shape"])
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ValueError(f"numbers {numbers}")
    return TensorInfo(entry["dtype"], tuple(entry["shape"]), start, end)


def _check_layout(path: Path, tensors: dict[str, TensorInfo], data_bytes: int) -> None:
    """Tensors must fill the data part without gap or overlap."""
    position = 0
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if info.dtype not in _ITEM_BYTES:
            raise _damaged(path, f"tensor {name!r} has the unknown dtype {info.dtype!r}")
        size = _ITEM_BYTES[info.dtype]
        for dimension in info.shape:
            size *= dimension
        if info.start != position or info.end - info.start != size:
            raise _damaged(
                path,
                f"tensor {name!r} of {size} bytes lies at [{info.start}, {info.end}), "
                f"expected [{position}, {position + size})",
            )
        position = info.end
    if position != data_bytes:
        raise _damaged(path, f"it holds {data_bytes} bytes of data, its header says {position}")


def _read_index(path: Path) -> dict[str, str]:
    try:
        weight_map = json.loads(path.read_bytes())["weight_map"]
        names = {str(tensor): str(shard) for tensor, shard in weight_map.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"it has no weight_map ({error!r:.200})") from error
    for shard in names.values():
        if Path(shard).name != shard:
            raise _damaged(path, f"it names {shard!r}, which is not a file of this folder")
    return names


def _find_sharded(folder: Path, weight_map: dict[str, str]) -> dict[str, tuple[Path, TensorInfo]]:
    shards = sorted(set(weight_map.values()))
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        raise ConfigError(
            f"{folder} lacks {', '.join(missing[:3])} ({len(missing)} of {len(shards)} shards); "
            "fetch the model again"
        )
    found = {
        name: (folder / shard, info)
        for shard in shards
        for name, info in read_header(folder / shard).items()
        if weight_map.get(name) == shard
    }
    lost = sorted(weight_map.keys() - found.keys())
    if lost:
        raise ConfigError(
            f"{folder / weight_map[lost[0]]} lacks tensor {lost[0]!r}, which {INDEX_FILE} "
            "promises; index and shards are not from the same model: fetch it again"
        )
    return found
