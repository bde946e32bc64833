"""From the bytes of a body to a checked request, or to an error that names the field."""

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import msgspec
from pydantic import ValidationError

from app.protocol.errors import (
    MalformedBody,
    MissingParameter,
    UnknownParameter,
    UnsupportedParameter,
)
from app.protocol.sampling_fields import Strict
from engine.errors import InvalidRequest

MAX_DEPTH = 32
MAX_FIELDS = 64
_MAX_NAME_LEN = 64

_ERRORS = {
    "missing": MissingParameter,
    "extra_forbidden": UnknownParameter,
    "unsupported_parameter": UnsupportedParameter,
}
# a client's field name is repeated, in an error or a header field, only if it is a plain name
_PLAIN_NAME = re.compile(rf"[A-Za-z0-9_]{{1,{_MAX_NAME_LEN}}}")

RequestT = TypeVar("RequestT", bound=Strict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema(Generic[RequestT]):
    """The fields of one route, and how each is treated.

    Attributes:
        model: the checked request.
        ignored: fields of `model` that have no effect.
        unsupported: fields that are refused, with the one value that asks for nothing.
    """

    model: type[RequestT]
    ignored: Collection[str] = ()
    unsupported: Mapping[str, Any]


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object, strictly.

    Raises:
        MalformedBody: if the body is anything else, or nested or filled beyond the limits.
    """
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedBody("the body is not valid JSON in UTF-8") from error
    if not isinstance(value, dict):
        raise MalformedBody("the body must be an object")
    if len(value) > MAX_FIELDS:
        raise MalformedBody(f"the body has {len(value)} fields, at most {MAX_FIELDS} are allowed")
    _check_depth(value)
    return value


def parse_request(
    schema: Schema[RequestT], body: Mapping[str, Any], unknown: Literal["reject", "ignore"]
) -> tuple[RequestT, list[str]]:
    """Check a body against a schema; null means not given.

    Returns:
        The request and the names of fields that were given but have no effect.

    Raises:
        InvalidRequest: naming the first field at fault.
    """
    given = {name: value for name, value in body.items() if value is not None}
    for name in given.keys() & schema.unsupported.keys():
        _check_unsupported(name, given.pop(name), schema.unsupported[name])
    known = schema.model.model_fields
    strangers = sorted(given.keys() - known.keys())
    if strangers and unknown == "reject":
        raise _unknown(strangers[0], [*known, *schema.unsupported])
    for name in strangers:
        del given[name]
    try:
        request = schema.model.model_validate(given)
    except ValidationError as error:
        raise _invalid(error) from None
    ignored = [name for name in given if name in schema.ignored]
    return request, ignored + [name for name in strangers if _PLAIN_NAME.fullmatch(name)]


def _check_depth(value: dict[str, Any]) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
    raise MalformedBody(f"the body is nested deeper than {MAX_DEPTH}")


def _check_unsupported(name: str, value: Any, neutral: Any) -> None:
    is_number = type(neutral) is float and type(value) is int
    if neutral is not None and value == neutral and (type(value) is type(neutral) or is_number):
        return
    hint = "" if neutral is None else f" or send {msgspec.json.encode(neutral).decode()}"
    raise UnsupportedParameter(f"{name} is not supported; leave it out{hint}", param=name)


def _unknown(name: str, known: Collection[str]) -> UnknownParameter:
    if not _PLAIN_NAME.fullmatch(name):
        return UnknownParameter("the body has a field whose name is not known")
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return UnknownParameter(f"there is no field {name}{hint}", param=name)


def _invalid(error: ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    # a validator of the whole body cannot point to a field: it names one by the error's type
    param = _field_path(first["loc"]) or (first["type"] if first["loc"] == () else "")
    kind = _ERRORS.get(first["type"], InvalidRequest)
    return kind(f"{param}: {first['msg']}", param=param)


def _field_path(location: tuple[int | str, ...]) -> str:
    """Write ("messages", 0, "content", "<text>") as messages[0].content.

    Tags of unions and names that a client made up are left out.
    """
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif _PLAIN_NAME.fullmatch(part):
            path += f".{part}" if path else part
    return path
