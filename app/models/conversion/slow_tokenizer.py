"""Makes tokenizer.json of the files that older tokenizers are published in."""

import json
from pathlib import Path

from engine.errors import ConfigError
from engine.model_config import read_json

TOKENIZER_FILE = "tokenizer.json"
# sentencepiece models, and byte-level BPE in two files
_SOURCES = (("tokenizer.model",), ("spiece.model",), ("vocab.json", "merges.txt"))


def slow_tokenizer_files(folder: Path) -> tuple[str, ...]:
    """Names of the files of a tokenizer that has to be converted; none if it has not."""
    if (folder / TOKENIZER_FILE).exists():
        return ()
    return next((s for s in _SOURCES if all((folder / name).is_file() for name in s)), ())


def convert_tokenizer(folder: Path, target: Path) -> None:
    """Write tokenizer.json, and the names of special tokens where no file has them.

    Args:
        folder: with `slow_tokenizer_files`.
        target: an existing folder with copies of its other small files.

    Raises:
        ConfigError: if transformers cannot read the tokenizer, or knows it by code of its own only.
    """
    _check_own_code(folder)
    # slow to import and needed by few
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        # only the fast kind has one
        tokenizer.backend_tokenizer.save(str(target / TOKENIZER_FILE))
    except Exception as error:  # converters raise what their parsers do
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ConfigError(
            f"{folder} has no {TOKENIZER_FILE}, and its "
            f"{' and '.join(slow_tokenizer_files(folder))} cannot be converted ({reason:.300})"
        ) from error
    names = target / "special_tokens_map.json"
    if not names.exists():
        # the ends that the class of the tokenizer knows, where its files name none
        text = json.dumps(dict(tokenizer.special_tokens_map), indent=2)
        names.write_text(text + "\n", encoding="utf-8")


def _check_own_code(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    if path.exists() and read_json(path).get("auto_map"):
        raise ConfigError(
            f"{folder} has no {TOKENIZER_FILE}, and its tokenizer brings code of its own "
            "(auto_map), which is never run"
        )
