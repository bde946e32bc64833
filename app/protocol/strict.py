"""What all parts of a body have in common: exact types, no unknown fields, null for nothing."""

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, ClassVar

import msgspec
from pydantic import BaseModel, ConfigDict, Discriminator, Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from app.limits import MAX_FIELDS, MAX_OBJECT_KEYS

# an object that the client makes up: a schema, the arguments of a call
JsonObject = Annotated[dict[str, Any], Field(max_length=MAX_OBJECT_KEYS, fail_fast=True)]

# error type of what `fault` and `either` make
FAULT = "fault"
_MAX_NAME_LEN = 64
# a client's field name is repeated, in an error or a header field, only if it is a plain name
_PLAIN_NAME = re.compile(rf"[A-Za-z0-9_]{{1,{_MAX_NAME_LEN}}}")


def fault(field: str, reason: str, code: str = "invalid_value") -> PydanticCustomError:
    """Make an error in the API's own words, to be raised by a validator.

    Args:
        field: the field at fault inside what is validated, or "" for that itself.
        reason: what would be right; "it" is the field.
        code: of the API, see `app.protocol.errors`.
    """
    return PydanticCustomError(FAULT, "{reason}", {"reason": reason, "field": field, "code": code})


def either(kinds: Callable[[Any], str | None], reason: str) -> Discriminator:
    """Choose a member of a union by its tag; `reason` says what is right where there is none."""
    return Discriminator(kinds, custom_error_type=FAULT, custom_error_message=reason)


def is_plain(name: str) -> bool:
    """Whether a name that a client made up may be repeated."""
    return _PLAIN_NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """The context of a validation: what of a body has no effect, at every depth.

    Attributes:
        names: of such fields, added as they are found.
        takes_unknown: whether fields that are not known are among them, or else refused.
    """

    names: list[str] = field(default_factory=list)
    takes_unknown: bool = False


class Strict(BaseModel):
    """No coercion, no unknown fields, no NaN; an int may stand for a float; null means not given.

    The context of a validation is a `LeftOut`, or None where nobody asks what has no effect.

    Attributes:
        place: where it lies in a body, as a prefix of the names of its fields.
        ignored: fields that have no effect.
        unsupported: fields that are not served, each with the values that ask for nothing; empty
            values do so in any case.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    place: ClassVar[str] = ""
    ignored: ClassVar[Collection[str]] = ()
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _keep_known(cls, given: Any, info: ValidationInfo) -> Any:
        if not isinstance(given, dict) or _is_as_it_should_be(cls, given):
            return given
        known = _known_names(cls)
        if len(given) > MAX_FIELDS + len(known) + len(cls.unsupported):
            raise fault("", "it has too many fields")
        given = {name: value for name, value in given.items() if value is not None}
        for name in given.keys() & cls.unsupported.keys():
            _check_unsupported(name, given.pop(name), cls.unsupported[name])
        left_out: LeftOut = info.context or LeftOut()
        if cls.ignored:
            left_out.names.extend(cls.place + name for name in given if name in cls.ignored)
        for name in sorted(given.keys() - known):
            if not left_out.takes_unknown:
                raise _unknown(name, sorted(known.union(cls.unsupported)))
            del given[name]
            if is_plain(name):
                left_out.names.append(cls.place + name)
        return given


def _is_as_it_should_be(model: type[Strict], given: dict[str, Any]) -> bool:
    """Whether nothing is to be done, as for most of the messages of which a body has thousands."""
    return not model.ignored and given.keys() <= _known_names(model) and None not in given.values()


@cache
def _known_names(model: type[Strict]) -> frozenset[str]:
    """Names of all fields; looked up once, since a body may have thousands of messages."""
    return frozenset(field.alias or name for name, field in model.model_fields.items())


def _check_unsupported(name: str, value: Any, neutral: tuple[Any, ...]) -> None:
    if isinstance(value, dict):
        value = {key: inner for key, inner in value.items() if inner is not None}
    if value is False or value in ("", [], {}):
        return
    # true equals 1, but is no number
    if value is not True and value in neutral:
        return
    hint = f" or send {msgspec.json.encode(neutral[0]).decode()}" if neutral else ""
    raise fault(name, f"it is not supported; leave it out{hint}", "unsupported_parameter")


def _unknown(name: str, known: Collection[str]) -> PydanticCustomError:
    if not is_plain(name):
        return fault("", "it has a field whose name is not known", "unknown_parameter")
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return fault(name, f"there is no such field{hint}", "unknown_parameter")
