"""The file of API keys: one a line, each with the limits of its requests behind it."""

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
    if path is None:
        return {}
    try:
        lines = path.expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"api_keys_file {path} cannot be read: {error}") from error
    keys = {}
    for number, line in enumerate(lines, start=1):
        key, *limits = line.split() or [""]
        if not key:
            continue
        try:
            found = dict(map(_limit, limits))
        except ValueError as error:
            # the line itself is a secret
            raise ConfigError(f"api_keys_file {path}, line {number}: {error}") from None
        keys[hashlib.sha256(key.encode()).digest()] = KeyLimits(**found)  # type: ignore[arg-type]
    if not keys:
        raise ConfigError(f"api_keys_file {path} has no key; write one a line, or set it to null")
    return keys


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
