"""Reads single fields of config.json; a value of the wrong kind is an error that names it.

Fields that nobody reads are refused, unless they are known to change nothing that is computed.
"""

from collections.abc import Mapping
from typing import Any

from engine.architectures.harmless import HARMLESS, NEUTRAL
from engine.errors import ConfigError

Json = dict[str, Any]


class Fields:
    """The fields of an object of config.json, under the names of one family or of all.

    A field that is missing has its default; null stands for what the reader says.
    """

    def __init__(
        self,
        config: Json,
        defaults: Mapping[str, Any] | None = None,
        spellings: Mapping[str, str] | None = None,
        *,
        what: str = "",
    ) -> None:
        """Keep what is needed.

        Args:
            defaults: common name -> value where the field is missing.
            spellings: common name -> the family's own name; both are understood.
            what: the field that holds the object, for messages; empty for the file.
        """
        self._config = config
        self._defaults = defaults or {}
        self._spellings = spellings or {}
        self._what = what
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._config or self._spellings.get(name) in self._config

    def value(self, name: str, default: object = None) -> Any:
        """Read a field of any kind; missing and null take the default."""
        spelling = self._spelling(name)
        given = {key: self._config[key] for key in (spelling, name) if key in self._config}
        self._read.update(given)
        values = [value for value in given.values() if value is not None]
        if values[1:] not in ([], values[:1]):
            raise ConfigError(f"{spelling} {given[spelling]!r} and {name} {given[name]!r} differ")
        value = self._defaults.get(name) if not given else values[0] if values else None
        return default if value is None else value

    def size(self, name: str, default: int | None = None) -> int:
        """Read an integer of at least 1; missing and null take the default."""
        value = self.value(name, default)
        if type(value) is not int or value < 1:
            raise self._wrong(name, value, "an integer of at least 1")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Read a positive, finite number; missing and null take the default."""
        value = self.value(name, default)
        if not _is_positive(value):
            raise self._wrong(name, value, "a positive number")
        return float(value)

    def numbers(self, name: str, length: int) -> tuple[float, ...]:
        """Read a list of so many positive numbers."""
        value = self.value(name)
        if not isinstance(value, list) or len(value) != length:
            raise self._wrong(name, value, f"a list of {length} positive numbers")
        if not all(map(_is_positive, value)):
            raise self._wrong(name, value, f"a list of {length} positive numbers")
        return tuple(map(float, value))

    def items(self, name: str, length: int) -> list[Any] | None:
        """Read a list with an item for each of `length` layers; None where there is none."""
        value = self.value(name)
        if value is not None and (not isinstance(value, list) or len(value) != length):
            raise self._wrong(name, value, f"a list of {length} items, one for each layer")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Read true or false; missing and null take the default."""
        value = self.value(name, default)
        if type(value) is not bool:
            raise self._wrong(name, value, "true or false")
        return value

    def inner(self, name: str) -> Json:
        """Read an object; empty where there is none."""
        value = self.value(name, {})
        if not isinstance(value, dict):
            raise ConfigError(f"{self._path(name)} {value!r} is not an object")
        return value

    def require(self, name: str, *expected: object) -> None:
        """Refuse what is not supported: a field is missing, null or one of `expected`."""
        value = self.value(name)
        if value is not None and value not in expected:
            raise ConfigError(
                f"{self._path(name)} {value!r} is not supported, only {expected[0]!r}"
            )

    def refuse_unread(self) -> None:
        """Refuse what no reader has asked for and what may change what is computed.

        Raises:
            ConfigError: naming the first such field.
        """
        for name, value in sorted(self._config.items()):
            if name in self._read or name in HARMLESS or name.startswith("_"):
                continue
            if value is None or value in ({}, [], ""):
                continue
            if name in NEUTRAL:
                self.require(name, NEUTRAL[name])
            else:
                raise ConfigError(
                    f"{self._path(name)} is not known here, so its value {value!r:.100} cannot be "
                    "served; remove it if it does not change what the model computes"
                )

    def _spelling(self, name: str) -> str:
        spelling = self._spellings.get(name, name)
        is_common = spelling not in self._config and name in self._config
        return name if is_common else spelling

    def _path(self, name: str) -> str:
        return ".".join(filter(None, (self._what, self._spelling(name))))

    def _wrong(self, name: str, value: object, expected: str) -> ConfigError:
        return ConfigError(f"{self._path(name)} is {value!r:.100}, expected {expected}")


def _is_positive(value: object) -> bool:
    return type(value) in (int, float) and 0 < float(value) < float("inf")  # type: ignore[arg-type]
