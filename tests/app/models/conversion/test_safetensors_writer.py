from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from app.models.conversion.safetensors_writer import num_bytes, write_safetensors


@dataclass(frozen=True)
class Values:
    values: list[float]
    dtype: str = "F32"

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.values), 1)

    def data(self) -> bytes:
        return np.array(self.values, {"F32": "<f4", "F16": "<f2"}[self.dtype]).tobytes()


def test_the_library_reads_what_was_written(tmp_path: Path) -> None:
    tensors = {"b": Values([1, 2, 3]), "a": Values([4], "F16")}
    written: list[int] = []
    write_safetensors(tmp_path / "x.safetensors", tensors.items(), written.append)
    found = load_file(tmp_path / "x.safetensors")
    assert {name: array.tolist() for name, array in found.items()} == {
        "b": [[1], [2], [3]], "a": [[4]],
    }  # fmt: skip
    assert written == [12, 2] == [num_bytes(tensor) for tensor in tensors.values()]
