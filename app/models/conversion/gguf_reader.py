"""Finds and reads GGUF files: metadata, and tensors that stay packed until they are wanted.

Source of the file format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gguf import GGUFReader, ReaderTensor

from app.models.checkpoint import has_weights
from engine.errors import ConfigError

SUFFIX = ".gguf"
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
# what lies beside language models: projectors of images, importance matrices
_OTHER = ("mmproj", "imatrix")
T = TypeVar("T")


def gguf_files(model: Path) -> list[Path]:
    """Find the files of a GGUF model, several if it was split; none if it is of another form.

    Args:
        model: a GGUF file, or a model folder. Weights of other forms come first.

    Raises:
        ConfigError: if a folder holds several models, or a part is missing.
    """
    if model.is_file():
        return _parts_of(model) if model.suffix == SUFFIX else []
    if has_weights(model) or any(model.glob("pytorch_model*.bin")):
        return []
    found = sorted(p for p in model.glob(f"*{SUFFIX}") if not p.name.startswith(_OTHER))
    first = [
        path for path in found if (part := _PART.fullmatch(path.name)) is None or part[2] == "00001"
    ]
    if len(first) > 1:
        names = ", ".join(path.name for path in first)
        raise ConfigError(f"{model} holds several GGUF models ({names}); give the path of one")
    if found and not first:
        raise ConfigError(f"{model} lacks the first part of {found[0].name}; fetch the model again")
    return _parts_of(first[0]) if first else []


def all_parts(name: str) -> str:
    """Return the pattern of the files that a model consists of, of which `name` is one."""
    return re.sub(r"-\d{5}-of-(\d{5})\.gguf$", r"-*-of-\1.gguf", name)


def _parts_of(path: Path) -> list[Path]:
    part = _PART.fullmatch(path.name)
    if part is None:
        return [path]
    count = int(part[3])
    paths = [
        path.with_name(f"{part[1]}-{number:05}-of-{part[3]}{SUFFIX}")
        for number in range(1, count + 1)
    ]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise ConfigError(f"{path.parent} lacks {missing[0]} ({len(missing)} of {count} parts)")
    return paths


class GgufModel:
    """Metadata and tensors of a model in one GGUF file, or in the parts of a split one.

    Attributes:
        path: of the first part, for messages.
        architecture: llama.cpp's name of the kind of model.
        tensors: by their names in the file.

    Raises:
        ConfigError: if a file is damaged.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.path = paths[0]
        readers = [_open(path) for path in paths]
        self._fields = readers[0].fields
        self.tensors: Mapping[str, ReaderTensor] = {
            tensor.name: tensor for reader in readers for tensor in reader.tensors
        }
        self.architecture = str(self.get("general.architecture", "?"))

    def get(self, name: str, default: T) -> Any | T:
        """Read a field of the metadata, or take the default."""
        field = self._fields.get(name)
        return default if field is None else field.contents()

    def need(self, name: str) -> Any:
        """Read a field of the metadata.

        Raises:
            ConfigError: if the file does not have it.
        """
        if name not in self._fields:
            raise ConfigError(f"{self.path} lacks the field {name!r}; is it a language model?")
        return self._fields[name].contents()

    def of_model(self, name: str, default: Any = None) -> Any:
        """Read a field that is named after the architecture, or take the default."""
        return self.get(f"{self.architecture}.{name}", default)

    def of_tokenizer(self, name: str, default: Any = None) -> Any:
        """Read a field of the tokenizer, or take the default."""
        return self.get(f"tokenizer.ggml.{name}", default)

    def chat_templates(self) -> Iterator[tuple[str, str]]:
        """Names and sources of the chat templates; that without a name is `default`."""
        if (template := self.get("tokenizer.chat_template", None)) is not None:
            yield "default", template
        for name in self.get("tokenizer.chat_templates", []):
            yield name, self.need(f"tokenizer.chat_template.{name}")


def _open(path: Path) -> GGUFReader:
    try:
        return GGUFReader(path)
    # the reader checks little: what is damaged raises whatever numpy does
    except Exception as error:
        raise ConfigError(
            f"{path} cannot be read as GGUF ({error!r:.200}); fetch it again"
        ) from error
