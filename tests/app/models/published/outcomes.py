"""What becomes of published models: read by the code that serves them, never written down by hand.

`python -m tests.app.models.published.outcomes > docs/published-models.md` writes the page. The
file models.json has the fields of config.json that say what a model is, and where they were found;
those of training, of images and sound, and lists of layers that are not quantised are left out.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import ModelConfig
from engine.errors import ConfigError
from engine.model_config import read_model_config
from tests.app.models.published.templates import CONVERSATIONS

Json = dict[str, Any]

_TEMPLATES = """
## Their chat templates

Templates as models publish them, out of public collections, each rendered from {count}
conversations by the server's sandbox and by transformers' `apply_chat_template`: with and without
system messages, tools, calls and their results, reasoning in the message or beside it, thinking
switched on and off, parts of text, and turns that a template may refuse. "Equal" counts texts that
are the same, character for character, "refused" conversations that both refuse; none differed.
`python -m tests.app.models.published.templates` repeats it; the templates are named by the
beginning of their SHA-256, and are not part of this repository.

| template | SHA-256 | equal | refused | found in |
|---|---|---:|---:|---|
"""
_TOKENIZERS = """
## Their tokenizers

Small ones that public repositories carry, loaded by the server and by transformers: ids of texts in
several scripts, of code, of spaces and of control tokens, and the texts of these ids. OpenLLaMA's
file puts a space in front of every text; transformers 5 builds tokenizers of its class anew and
puts none in front of a text that begins with one. The server follows the file. `python -m
tests.app.models.published.tokenizers` repeats it.

| found in | form | result |
|---|---|---|
"""
_HEAD = """# Published models, and what becomes of them

What the reader of `config.json` says of models as they are published. This page is written by
`python -m tests.app.models.published.outcomes`, and a test compares it with the code; the fields
and where they were found are in [models.json](../tests/app/models/published/models.json). What is
served at all is in [serving a model](serving-a-model.md#which-models).

| model | `architectures` | served |
|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A model that is served has a config, one that is refused a reason."""

    architecture: str
    config: ModelConfig | None
    reason: str


def published_configs() -> dict[str, Json]:
    """Name of a model -> content of its config.json."""
    found = json.loads((Path(__file__).parent / "models.json").read_bytes())
    return {name: entry["config"] for name, entry in found.items()}


def outcome(config: Json) -> Outcome:
    """Read a config.json as the server does."""
    [architecture] = config["architectures"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        try:
            return Outcome(architecture, read_model_config(Path(folder)), "")
        except ConfigError as error:
            return Outcome(architecture, None, str(error).removeprefix(f"{path}: "))


def page() -> str:
    """The page of the documentation."""
    lines = []
    for name, config in published_configs().items():
        found = outcome(config)
        # what else is served follows the reason
        served = "yes" if found.config else f"no: {found.reason.partition(';')[0]}"
        lines.append(f"| {name} | `{found.architecture}` | {served} |\n")
    head = _TEMPLATES.format(count=len(CONVERSATIONS))
    parts = [_HEAD, *lines, head, *_template_rows(), _TOKENIZERS, *_tokenizer_rows()]
    return "".join(parts)


def published_templates() -> Json:
    """SHA-256 of a chat template -> what `templates.main` has noted of it."""
    found: Json = json.loads((Path(__file__).parent / "templates.json").read_bytes())
    return found


def _template_rows() -> Iterator[str]:
    noted = published_templates().items()
    for digest, entry in sorted(noted, key=lambda item: item[1]["name"].lower()):
        repository = entry["source"].partition("@")[0]
        numbers = f"{entry['equal']} | {entry['refused']}"
        yield f"| {entry['name']} | `{digest[:12]}` | {numbers} | {repository} |\n"


def _tokenizer_rows() -> Iterator[str]:
    for entry in json.loads((Path(__file__).parent / "tokenizers.json").read_bytes()):
        form = "converted from older files" if entry["converted"] else "`tokenizer.json`"
        result = entry["different"] or "equal"
        yield f"| {entry['source'].partition('@')[0]} | {form} | {result} |\n"


if __name__ == "__main__":
    sys.stdout.write(page())
