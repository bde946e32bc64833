"""Reports which engine a Serve configuration file asks for, to tools that must not import this.

`python -m app.settings.resolved_config serve_config.yaml` reads a JSON list from standard
input, of objects that map options to new values (YAML texts), and writes a JSON list: for each
object either `{"engine": ...}`, the fields of `EngineConfig` with `scheduler` as an object, or
`{"error": ...}`.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from app.settings.config import parse_config
from app.settings.engine_settings import to_engine_config
from app.settings.serve_file import applications
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.model_config import read_model_config


def resolved(args: dict[str, Any], changes: Mapping[str, str]) -> EngineConfig:
    """Fill in an application's options, some of them changed; weights and memory are not checked.

    Args:
        args: of the configuration file; is not changed.
        changes: option, for example `limits.max_body_mib` -> value as YAML.

    Raises:
        ConfigError: naming what cannot be used.
    """
    for name, text in changes.items():
        args = changed(args, name.split("."), yaml_value(name, text))
    config = parse_config(args)
    # brings numpy and tokenizers, for which `pagoda serve --help` has no time
    from app.models.model_store import resolve

    folder = resolve(
        config.model, config.cache_folder, revision=config.revision, with_weights=False
    )
    return to_engine_config(config, folder, read_model_config(folder))


def yaml_value(name: str, text: str) -> Any:
    """Read the value of an option.

    Raises:
        ConfigError: if it is no YAML.
    """
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"{name}={text} is no YAML value; quote it") from None


def changed(args: Any, path: list[str], value: Any) -> Any:
    """Return `args` with the value at a path of names replaced; `args` itself stays as it is."""
    if not path:
        return value
    inside = args if isinstance(args, dict) else {}
    return inside | {path[0]: changed(inside.get(path[0]), path[1:], value)}


def main() -> int:
    """Answer what is asked on standard input; the exit code is 1 if the file cannot be read."""
    try:
        # the first application, as `serve run` without a name
        args = applications(Path(sys.argv[1]))[0][1]
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    answers: list[dict[str, Any]] = []
    for changes in json.load(sys.stdin):
        try:
            answers.append({"engine": asdict(resolved(args, changes))})
        except ConfigError as error:
            answers.append({"error": str(error)})
    json.dump(answers, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
