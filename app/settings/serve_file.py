"""Reads a Serve configuration file, such as serve_config.yaml, without starting anything."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from engine.errors import ConfigError

_T = TypeVar("_T")
# Serve's own defaults
_HTTP_HOST, _HTTP_PORT = "127.0.0.1", 8000


def policies(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the `policy` of each deployment that has one, with the name of its application.

    Args:
        path: a file that `applications` accepts.
    """
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    found = []
    for app in content["applications"]:
        for deployment in app.get("deployments") or []:
            scaling = deployment.get("autoscaling_config") or {}
            policy = scaling.get("policy") if isinstance(scaling, dict) else None
            if isinstance(policy, dict):
                found.append((app["name"], policy))
    return found


def applications(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return name and `args` of each application in the file; there is at least one.

    Raises:
        ConfigError: if the file is missing or is no Serve configuration.
    """
    found = _read(
        path,
        lambda content: [(app["name"], app.get("args") or {}) for app in content["applications"]],
    )
    if not found:
        raise ConfigError(f"{path} has no application")
    return found


def read_file(path: Path) -> dict[str, Any]:
    """Return all that is in a file.

    Raises:
        ConfigError: if the file is missing or is no Serve configuration.
    """
    return _read(path, dict)


def has_tls(path: Path) -> bool:
    """Whether Serve's own HTTP proxy is to speak TLS.

    Raises:
        ConfigError: if the file is missing or is no Serve configuration.
    """
    return _read(
        path, lambda content: bool((content.get("http_options") or {}).get("ssl_certfile"))
    )


def http_address(path: Path) -> tuple[str, int]:
    """Return host and port on which Serve will answer HTTP.

    Raises:
        ConfigError: if the file is missing or is no Serve configuration.
    """

    def address(content: Any) -> tuple[str, int]:
        options = content.get("http_options") or {}
        return str(options.get("host", _HTTP_HOST)), int(options.get("port", _HTTP_PORT))

    return _read(path, address)


def _read(path: Path, take: Callable[[Any], _T]) -> _T:
    try:
        return take(yaml.safe_load(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except (OSError, ValueError, yaml.YAMLError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path} is not a Serve configuration file: {error!r:.300}") from error
