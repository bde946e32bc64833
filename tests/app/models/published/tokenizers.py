"""Published tokenizers, by the server and by transformers: the same ids, and texts of ids.

`python -m tests.app.models.published.tokenizers SOURCE=FOLDER... > tokenizers.json` loads folders
of models, whose tokenizers are converted first where they have no `tokenizer.json`. They are not
copied here.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from app.models.conversion.converted import converted
from app.text.tokenizer import Tokenizer
from engine.errors import ConfigError

TEXTS = (
    "Hello, world! don't I'll we've",
    "  two  spaces\n\tand tabs\r\n\n\n",
    "Hōryū-ji 法隆寺 🏯 ünïcode — “quotes” العربية हिन्दी",
    "def f(x):\n    return x ** 2  # ok\n",
    "1234567890 3.14159 " + "a" * 200,
    "<s>[INST] hi [/INST]</s><|im_start|>user\nhi<|im_end|><|endoftext|>",
    " ",
)


def compare(folder: Path, cache: Path) -> str:
    """Say what differs, or why the server refuses; nothing if all is equal."""
    try:
        ours = Tokenizer.load(converted(folder, cache, with_weights=False))
    except ConfigError as error:
        return str(error)
    theirs: Any = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        for has_specials in (True, False):
            ids = theirs.encode(text, add_special_tokens=has_specials)
            if list(ours.encode(text, add_special_tokens=has_specials)) != ids:
                return f"other ids of {text[:16]!r}"
            if ours.decode(ids) != theirs.decode(ids):
                return f"another text of the ids of {text[:16]!r}"
    return ""


def main(arguments: list[str]) -> int:
    """Write JSON: an entry for each folder."""
    noted = []
    with tempfile.TemporaryDirectory() as cache:
        for argument in arguments:
            source, _, folder = argument.rpartition("=")
            is_converted = not (Path(folder) / "tokenizer.json").is_file()
            different = compare(Path(folder), Path(cache))
            noted.append({"source": source, "converted": is_converted, "different": different})
    json.dump(noted, sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
