"""GET /openapi.json and GET /docs: the API's description, from the schemas that parse requests."""

import html
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic.json_schema import models_json_schema

from app.http.schemas import BODIES

_REF = "#/components/schemas/{model}"
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string", "maxLength": 1000},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}
# of one event
_STREAMED = {
    "text/event-stream": {
        "schema": {
            "type": "object",
            "required": ["data"],
            "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
        }
    }
}
# of paths that take no body: method, path -> what it does
_OTHERS = {
    ("get", "/v1/models"): "The model that is served.",
    ("get", "/v1/models/{model}"): "The model that is served, by its name.",
    ("get", "/v1/prefixes"): "The caller's pinned prefixes.",
    ("get", "/v1/prefixes/{name}"): "A pinned prefix.",
    ("delete", "/v1/prefixes/{name}"): "Lets go of a pinned prefix.",
    ("get", "/health"): "Whether an engine makes progress.",
    ("get", "/live"): "Whether the HTTP process lives.",
}


@cache
def openapi() -> dict[str, Any]:
    """Return the description of the API: https://spec.openapis.org/oas/v3.1.0."""
    models = [(model, "validation") for model in BODIES.values()]
    refs, schemas = models_json_schema(models, ref_template=_REF)  # type: ignore[arg-type]
    for schema in schemas["$defs"].values():
        _let_null_be_nothing(schema)
    paths: dict[str, dict[str, Any]] = {}
    for path, model in BODIES.items():
        words = (model.__doc__ or "").partition("\n")[0]
        streams = "stream" in model.model_fields
        body = {"required": True, "content": _json(refs[(model, "validation")])}
        paths[path] = {"post": _operation(words, streams=streams) | {"requestBody": body}}
    for (method, path), words in _OTHERS.items():
        paths.setdefault(path, {})[method] = _operation(words) | _parameters(path)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pagoda", "version": "1", "description": "OpenAI's API, and more."},
        "paths": paths,
        "components": {
            "schemas": {**schemas["$defs"], "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def page() -> str:
    """Return the description as a page that needs no scripts."""
    description = openapi()
    rows = [
        _section(path, method, operation, description["components"]["schemas"])
        for path, operations in description["paths"].items()
        for method, operation in operations.items()
    ]
    return _PAGE.replace("{rows}", "\n".join(rows))


def _operation(words: str, *, streams: bool = False) -> dict[str, Any]:
    error = {"description": "An error.", "content": _json({"$ref": _REF.format(model="Error")})}
    content = _json({"type": "object"}) | (_STREAMED if streams else {})
    return {
        "summary": words,
        "security": [{"key": []}],
        "responses": {"200": {"description": "The answer.", "content": content}, "default": error},
    }


def _let_null_be_nothing(schema: dict[str, Any]) -> None:
    """Let null stand for a field that is not given, as `Strict` does, IN PLACE."""
    for name, field in schema.get("properties", {}).items():
        options = field.get("anyOf", [field])
        if name not in schema.get("required", ()) and {"type": "null"} not in options:
            shown = {key: field[key] for key in ("default", "title") if key in field}
            schema["properties"][name] = {"anyOf": [field, {"type": "null"}], **shown}


def _parameters(path: str) -> dict[str, Any]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in names
    ]
    return {"parameters": parameters} if parameters else {}


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _section(
    path: str, method: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]
) -> str:
    head = f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>"
    words = f"<p>{html.escape(operation['summary'])}</p>"
    if "requestBody" not in operation:
        return head + words
    ref = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = schemas[ref.rpartition("/")[2]]
    rows = [
        f"<tr><td><code>{html.escape(name)}</code></td><td>{html.escape(_kind(field))}</td>"
        f"<td><code>{html.escape(str(field.get('default', '')))}</code></td></tr>"
        for name, field in schema["properties"].items()
    ]
    table = "<table><tr><th>field</th><th>type</th><th>default</th></tr>"
    return f"{head}{words}{table}{''.join(rows)}</table>"


def _kind(field: Mapping[str, Any]) -> str:
    """Describe the type of a field in a few words."""
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    for word in ("anyOf", "oneOf"):
        if word in field:
            kinds = [_kind(option) for option in field[word]]
            return " or ".join(kind for kind in kinds if kind != "null")
    if "enum" in field or "const" in field:
        return " or ".join(repr(value) for value in field.get("enum", [field.get("const")]))
    kind = str(field.get("type", "anything"))
    ends = [field.get(low, field.get(high)) for low, high in _ENDS]
    if any(end is not None for end in ends):
        kind += " from {} to {}".format(*("any" if end is None else end for end in ends))
    return f"list of {_kind(field['items'])}" if "items" in field else kind


_ENDS = (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Pagoda: API</title>
<style>
body { font: 16px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse } td, th { border: 1px solid #bbb; padding: .1em .6em;
text-align: left }
</style>
<h1>Pagoda: API</h1>
<p>The same as <a href="openapi.json">openapi.json</a>, from which clients can be made.</p>
{rows}
</html>
"""
