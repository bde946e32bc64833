"""Files of keys: one a line; behind an API key may stand the limits of its requests."""

import hashlib
import math
from collections.abc import Callable
from pathlib import Path

from app.protocol.api_settings import KeyLimits
from engine.errors import ConfigError

# name of a limit in the file, its type, and the largest value; the least is above 0
_LIMITS: dict[str, tuple[Callable[[str], float], float]] = {
    "weight": (float, 1e6),
    "queue_share": (float, 1.0),
    "max_concurrent": (int, 1 << 20),
    "tokens_per_minute": (int, 1 << 40),
}


def read_api_keys(path: Path | None) -> dict[bytes, KeyLimits]:
    """Return the digests of the keys with their limits; the keys themselves are not kept.

    Raises:
        ConfigError: if the file cannot be read, or a line of it.
    """
    keys = {}
    for number, line in _lines("api_keys_file", path):
        key, *limits = line.split()
        try:
            found = dict(map(_limit, limits))
        except ValueError as error:
            # the line itself is a secret
            raise ConfigError(f"api_keys_file {path}, line {number}: {error}") from None
        keys[_digest(key)] = KeyLimits(**found)  # type: ignore[arg-type]
    return keys


def read_operator_keys(path: Path | None) -> tuple[bytes, ...]:
    """Return the digests of operators' keys, which have no limits.

    Raises:
        ConfigError: if the file cannot be read.
    """
    return tuple(_digest(line) for _, line in _lines("operator_keys_file", path))


def _lines(option: str, path: Path | None) -> list[tuple[int, str]]:
    """Return what is not blank, with the numbers of the lines."""
    if path is None:
        return []
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option} {path} cannot be read: {error}") from error
    lines = enumerate(map(str.strip, text.splitlines()), start=1)
    found = [(number, line) for number, line in lines if line]
    if not found:
        raise ConfigError(f"{option} {path} has no key; write one a line, or set it to null")
    return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    if name not in _LIMITS:
        raise ValueError(f"behind a key may stand {', '.join(f'{each}=' for each in _LIMITS)}")
    read, most = _LIMITS[name]
    try:
        number = read(value)
    except ValueError:
        number = math.nan
    if not 0 < number <= most:
        kind = "a whole number" if read is int else "a number"
        raise ValueError(f"{name} must be {kind} above 0, at most {most:g}")
    return name, number
