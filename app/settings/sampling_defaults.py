"""Sampling parameters that a model's folder names for requests without them."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from app.protocol.sampling_fields import SamplingFields
from engine.errors import ConfigError
from engine.model_config import read_json

# fields of generation_config.json that are fields of a request, under the same name
_FIELDS = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty",
)  # fmt: skip


def read_sampling_defaults(folder: Path) -> Mapping[str, float]:
    """Read generation_config.json, if there is one: field of a request -> its default.

    Raises:
        ConfigError: naming a value that no request could have.
    """
    path = folder / "generation_config.json"
    content = read_json(path) if path.exists() else {}
    given = {name: content[name] for name in _FIELDS if content.get(name) is not None}
    try:
        SamplingFields.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        name, value, reason = first["loc"][0], first["input"], first["msg"]
        raise ConfigError(f"{path}: {name} is {value!r:.100}: {reason}; correct the file") from None
    return given
