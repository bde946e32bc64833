"""What becomes of published models: read by the code that serves them, never written down by hand.

`python -m tests.app.models.published.outcomes > docs/published-models.md` writes the page. The
file models.json has the fields of config.json that say what a model is, and where they were found;
those of training, of images and sound, and lists of layers that are not quantised are left out.
"""

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import ModelConfig
from engine.errors import ConfigError
from engine.model_config import read_model_config

Json = dict[str, Any]

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
    return _HEAD + "".join(lines)


if __name__ == "__main__":
    sys.stdout.write(page())
