"""Turns GGUF files into a Hugging Face folder: config.json, safetensors, tokenizer."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, GGMLQuantizationType, ReaderTensor, TensorNameMap
from gguf.quants import dequantize
from numpy.typing import NDArray

from app.models.built_folder import check_disk_space
from app.models.checkpoint import expected_tensors
from app.models.conversion.gguf_config import GgufFamily, end_ids, family_of, model_config
from app.models.conversion.gguf_reader import GgufModel
from app.models.conversion.gguf_tokenizer import make_tokenizer, tokenizer_config
from app.models.conversion.safetensors_writer import Advance, num_bytes, write_safetensors
from engine.errors import ConfigError
from engine.model_config import read_model_config
from engine.model_files import SINGLE_FILE

Shape = tuple[int, ...]

_KEPT_DTYPES = {GGMLQuantizationType.F32: "F32", GGMLQuantizationType.F16: "F16",
                GGMLQuantizationType.BF16: "BF16"}  # fmt: skip
# what config.json says, or what the embedding repeats
_NOT_WEIGHTS = re.compile(r"rope_freqs\.weight|rope_factors_(long|short)\.weight|output\.weight")
_EXPERT = re.compile(r"\.experts\.(\d+)\.")
_CHUNK_VALUES = 1 << 24


def convert_gguf(
    paths: Sequence[Path], folder: Path, advance: Advance, *, with_weights: bool = True
) -> None:
    """Write the model into the existing `folder`; what is quantised becomes bfloat16.

    Args:
        paths: of the file, or of all parts of a split one.
        advance: called after each tensor with the bytes written and in total.
        with_weights: False for configuration and tokenizer only.

    Raises:
        ConfigError: if the file is damaged, or its kind of model or tokenizer is not served.
    """
    model = GgufModel(paths)
    family = family_of(model)
    config = model_config(model, family)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", end_ids(model))
    # refuses what is not served before the long part
    expected = expected_tensors(read_model_config(folder))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(model))
    make_tokenizer(model).save(str(folder / "tokenizer.json"))
    if with_weights:
        write_weights(folder / SINGLE_FILE, GgufWeights(model, family, config), expected, advance)


def write_weights(
    path: Path, weights: "GgufWeights", expected: Mapping[str, Shape], advance: Advance
) -> None:
    """Write the tensors that config.json asks for.

    Args:
        expected: names and shapes as transformers have them.

    Raises:
        ConfigError: if the file lacks one or has others, or the disk is full.
    """
    tensors = list(weights.tensors(expected))
    total, done = sum(num_bytes(tensor) for _, tensor in tensors), 0
    check_disk_space(path.parent, total)

    def advanced(written: int) -> None:
        nonlocal done
        done += written
        advance(done, total)

    write_safetensors(path, tensors, advanced)


class GgufWeights:
    """The tensors of a GGUF model by the names that transformers give them."""

    def __init__(self, model: GgufModel, family: GgufFamily, config: Mapping[str, Any]) -> None:
        """Args: config: content of config.json."""
        self._model = model
        self._family = family
        self._heads = {
            "attn_q": config.get("num_attention_heads"),
            "attn_k": config.get("num_key_value_heads"),
        }
        architectures = {name: key for key, name in MODEL_ARCH_NAMES.items()}
        key: MODEL_ARCH = architectures[model.architecture]
        layers = int(model.need(f"{model.architecture}.block_count"))
        self._names = TensorNameMap(key, layers)

    def tensors(self, expected: Mapping[str, Shape]) -> Iterator[tuple[str, "_Converted"]]:
        """Yield each expected tensor, in the order of their names there.

        Raises:
            ConfigError: if one is missing, or the file has one that is not expected.
        """
        path = self._model.path
        unused = {name for name in self._model.tensors if not _NOT_WEIGHTS.fullmatch(name)}
        for name, shape in expected.items():
            stored = self._names.get_name(_EXPERT.sub(".experts.", name), (".weight", ".bias"))
            if stored is None or stored not in self._model.tensors:
                raise ConfigError(f"{path} lacks the tensor {stored or name!r}; fetch it again")
            unused.discard(stored)
            expert = _EXPERT.search(name)
            tensor = self._model.tensors[stored]
            yield name, self._converted(tensor, shape, int(expert[1]) if expert else None)
        if unused:
            raise ConfigError(
                f"{path}: tensor {min(unused)!r} has no place in a {self._family.architecture} as "
                f"the file describes it ({len(unused)} such tensors)"
            )

    def _converted(self, tensor: ReaderTensor, shape: Shape, expert: int | None) -> "_Converted":
        kind, _, part = tensor.name.removeprefix("blk.").partition(".")[2].partition(".")
        packed = tensor.data if expert is None else tensor.data[expert]
        heads = self._heads.get(kind) if self._family.has_permuted_heads else None
        if heads is not None:
            packed = _unpermuted(packed, heads)
        return _Converted(
            packed=packed,
            kind=tensor.tensor_type,
            shape=shape,
            is_transposed=self._family.is_transposed and part == "weight" and len(shape) == 2,
            subtracted=float(
                self._family.has_shifted_norms and tensor.name.endswith("norm.weight")
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Converted:
    """A `Writable`: packed rows of a tensor of GGUF, which are unpacked when they are read."""

    packed: NDArray[Any]
    kind: GGMLQuantizationType
    shape: Shape
    is_transposed: bool
    subtracted: float

    @property
    def dtype(self) -> str:
        kept = _KEPT_DTYPES.get(self.kind, "BF16")
        return "BF16" if kept == "F32" and self._fits_bfloat16() else kept

    def data(self) -> memoryview:
        if self.dtype == "F16":
            values: NDArray[Any] = np.ascontiguousarray(self._turned(self.packed), dtype="<f2")
        elif self.dtype == "F32":
            values = np.ascontiguousarray(self._floats(), dtype="<f4")
        else:
            values = np.ascontiguousarray(self._turned(self._bfloat16()))
        return values.reshape(-1).view(np.uint8).data

    def _floats(self) -> NDArray[np.float32]:
        return self._turned(self.packed.astype(np.float32) - np.float32(self.subtracted))

    def _fits_bfloat16(self) -> bool:
        # files keep norms and biases of bfloat16 models in float32
        return not (np.ascontiguousarray(self._floats()).view(np.uint32) & 0xFFFF).any()

    def _bfloat16(self) -> NDArray[np.uint16]:
        rows = self.packed.reshape(-1, self.packed.shape[-1])
        columns = int(np.prod(self._stored_shape())) // len(rows)
        values = np.empty((len(rows), columns), "<u2")
        step = max(1, _CHUNK_VALUES // columns)
        for start in range(0, len(rows), step):
            part = dequantize(rows[start : start + step], self.kind)
            values[start : start + step] = _rounded(part - np.float32(self.subtracted))
        return values.reshape(self._stored_shape())

    def _stored_shape(self) -> Shape:
        return self.shape[::-1] if self.is_transposed else self.shape

    def _turned(self, values: NDArray[Any]) -> NDArray[Any]:
        stored = values.reshape(self._stored_shape())
        return stored.T if self.is_transposed else stored


def _unpermuted(packed: NDArray[Any], num_heads: int) -> NDArray[Any]:
    """Undo how llama.cpp orders rows: it rotates neighbours (2i, 2i + 1), we the halves of a head.

    Rows are whole blocks of quantised values, so they can be moved as they are.
    """
    rows = np.arange(len(packed)).reshape(num_heads, len(packed) // num_heads // 2, 2)
    return packed[rows.swapaxes(1, 2).reshape(-1)]


def _rounded(weights: NDArray[np.float32]) -> NDArray[np.uint16]:
    # to the nearest bfloat16, ties to even
    bits = np.ascontiguousarray(weights, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
