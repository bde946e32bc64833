"""Reads single fields of config.json; a value of the wrong kind is an error that names it."""

from typing import Any

from engine.errors import ConfigError

Json = dict[str, Any]


def size(config: Json, name: str, default: int | None = None) -> int:
    """Read an integer of at least 1; missing and null take the default."""
    value = config.get(name)
    value = default if value is None else value
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name} is {value!r}, expected an integer of at least 1")
    return value


def number(config: Json, name: str, default: float | None = None) -> float:
    """Read a positive, finite number; missing and null take the default."""
    value = config.get(name)
    value = default if value is None else value
    if type(value) is bool or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ConfigError(f"{name} is {value!r}, expected a positive number")
    return float(value)


def flag(config: Json, name: str, default: bool = False) -> bool:
    """Read true or false; missing and null take the default."""
    value = config.get(name)
    if value not in (None, True, False):
        raise ConfigError(f"{name} is {value!r}, expected true or false")
    return default if value is None else bool(value)


def head_dim_of(hidden_size: int, num_heads: int) -> int:
    """Split the hidden size evenly over the heads."""
    if hidden_size % num_heads:
        raise ConfigError(f"hidden size {hidden_size} is not a multiple of {num_heads} heads")
    return hidden_size // num_heads


def require(config: Json, name: str, expected: object) -> None:
    """Refuse a kind of model that is not supported: a field is missing, null or `expected`."""
    value = config.get(name)
    if value is not None and value != expected:
        raise ConfigError(f"{name} {value!r} is not supported, only {expected!r}")
