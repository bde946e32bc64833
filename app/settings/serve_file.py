"""Reads a Serve configuration file, such as serve_config.yaml, without starting anything."""

from pathlib import Path
from typing import Any

import yaml

from engine.errors import ConfigError


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
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        found = [(app["name"], app.get("args") or {}) for app in content["applications"]]
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except (OSError, ValueError, yaml.YAMLError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path} is not a Serve configuration file: {error!r:.300}") from error
    if not found:
        raise ConfigError(f"{path} has no application")
    return found
