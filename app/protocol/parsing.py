"""From the bytes of a body to a checked request, or to an error that names the field."""

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec
from pydantic import ValidationError

from app.limits import MAX_BODY_VALUES, MAX_CONTAINERS, MAX_DEPTH, MAX_FIELDS
from app.protocol.errors import (
    MalformedBody,
    MissingParameter,
    UnknownParameter,
    UnsupportedParameter,
)
from app.protocol.strict import FAULT, LeftOut, Strict, is_plain
from engine.errors import InvalidRequest

# errors are shown in part only, so that a long one is not worth its bytes
_MAX_REASON_LEN = 500

# one of these stands in front of every key and value but the outermost
_OPENINGS = (b"[", b"{")
_FRONTS = (b",", b":", *_OPENINGS)
_ERRORS = {kind.code: kind for kind in (MissingParameter, UnknownParameter, UnsupportedParameter)}
# the validation library's error -> the API's words
_REASONS = {
    "bool_type": "it must be true or false",
    "dict_type": "it must be an object",
    "finite_number": "it must be a finite number",
    "float_type": "it must be a number",
    "greater_than": "it must be above {gt}",
    "greater_than_equal": "it must be at least {ge}",
    "int_type": "it must be a whole number",
    "less_than_equal": "it must be at most {le}",
    "list_type": "it must be a list",
    "literal_error": "it must be {expected}",
    "missing": "it must be given",
    "model_type": "it must be an object",
    "string_pattern_mismatch": "it must match {pattern}",
    "string_too_long": "it may have at most {max_length} characters",
    "string_too_short": "it must have at least {min_length} characters",
    "string_type": "it must be text",
    "too_long": "it may have at most {max_length} items",
    "too_short": "it must have at least {min_length} items",
}

RequestT = TypeVar("RequestT", bound=Strict)


def parse_object(body: bytes | bytearray, max_values: int = MAX_BODY_VALUES) -> dict[str, Any]:
    """Parse a JSON object, strictly.

    Args:
        max_values: keys and values that it may have, inner ones too.

    Raises:
        MalformedBody: if the body is anything else, or nested or filled beyond the limits; of too
            many values none is made.
    """
    # most often few of them stand even in texts, which this sees at once
    num_openings = sum(map(body.count, _OPENINGS))
    if num_openings > MAX_CONTAINERS or sum(map(body.count, _FRONTS)) >= max_values:
        _check_num_values(body, max_values)
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
    model: type[RequestT], body: Mapping[str, Any], unknown: Literal["reject", "ignore"]
) -> tuple[RequestT, list[str]]:
    """Check a body.

    Returns:
        The request and the names of at most MAX_FIELDS fields that were given but have no effect.

    Raises:
        InvalidRequest: naming the first field at fault.
    """
    left_out = LeftOut(takes_unknown=unknown == "ignore")
    try:
        request = model.model_validate(body, context=left_out)
    except ValidationError as error:
        raise _invalid(error) from None
    return request, list(dict.fromkeys(left_out.names))[:MAX_FIELDS]


def _check_num_values(body: bytes | bytearray, max_values: int) -> None:
    num_values, num_containers = count_values(body, max_values)
    if num_values > max_values:
        raise MalformedBody(
            f"the body has {num_values} or more keys and values, at most {max_values} are allowed"
        )
    if num_containers > MAX_CONTAINERS:
        raise MalformedBody(
            f"the body has {num_containers} lists and objects, at most {MAX_CONTAINERS} are allowed"
        )


def count_values(body: bytes | bytearray, enough: int) -> tuple[int, int]:
    """Count the keys and values of a JSON text, and its lists and objects, without parsing it.

    Takes some passes of C code over the body, whatever is in it. Of what is no JSON any numbers are
    right; of more keys and values than `enough` lower bounds.
    """
    # a run of backslashes is read in pairs, so what is left of it makes the quote behind it plain
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    num_strings = plain.count(b'"') // 2
    if num_strings > enough:
        return num_strings, 0
    outside = b"s".join(plain.split(b'"')[::2]).translate(None, b" \t\r\n")
    num_empty = outside.count(b"[]") + outside.count(b"{}")
    num_values = sum(map(outside.count, _FRONTS)) - num_empty + 1
    return num_values, sum(map(outside.count, _OPENINGS))


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


def _invalid(error: ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False, include_input=False)[0]
    context = first.get("ctx", {})
    path, code = _field_path(first["loc"]), first["type"]
    if code == FAULT:
        path = _field_path((*first["loc"], *context.get("field", "").split(".")))
        code, reason = context.get("code", ""), first["msg"]
    else:
        reason = _REASONS.get(code, "its value is not valid").format_map(context)
    kind = MissingParameter if code == "missing" else _ERRORS.get(code, InvalidRequest)
    return kind(f"{path or 'the body'}: {reason[:_MAX_REASON_LEN]}", param=path or None)


def _field_path(location: tuple[int | str, ...]) -> str:
    """Write ("messages", 0, "content", "<text>") as messages[0].content.

    Tags of unions and names that a client made up are left out.
    """
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif is_plain(part):
            path += f".{part}" if path else part
    return path
