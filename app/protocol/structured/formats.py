"""Objects of a request that say what an answer must match."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
from pydantic import BeforeValidator, Field, Tag, model_validator

from app.grammars.grammar_spec import GrammarSpec, Kind
from app.limits import MAX_GRAMMAR_CHOICES
from app.protocol.strict import JsonObject, Strict, either, fault

_ANY_OBJECT = '{"type":"object"}'
KINDS: dict[str, Kind] = {
    "json": "json",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
}
_NOT_SERVED = "it is not supported; leave it out"


def _kind_of_schema(value: Any) -> str | None:
    return "<text>" if isinstance(value, str) else "<object>" if isinstance(value, dict) else None


Schema = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[JsonObject, Tag("<object>")],
    either(_kind_of_schema, "it must be an object or its JSON as text"),
]
Choices = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    Field(min_length=1, max_length=MAX_GRAMMAR_CHOICES, fail_fast=True),
]


class JsonSchemaFormat(Strict):
    """A named JSON schema."""

    place: ClassVar[str] = "response_format.json_schema."

    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str | None = None
    json_schema: JsonObject | None = Field(None, alias="schema")
    # every schema is followed to the letter
    strict: bool | None = None


def _refuse_tags(value: Any) -> Any:
    if value == "structural_tag":
        raise fault("", _NOT_SERVED, "unsupported_parameter")
    return value


class ResponseFormat(Strict):
    """OpenAI's way to ask for JSON."""

    place: ClassVar[str] = "response_format."

    type: Annotated[Literal["text", "json_object", "json_schema"], BeforeValidator(_refuse_tags)]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        if self.type == "json_schema" and self.json_schema is None:
            raise fault("json_schema", "it must be given", "missing_required_parameter")
        if self.type != "json_schema" and self.json_schema is not None:
            raise fault("json_schema", 'it needs the type "json_schema"')
        return self

    def spec(self) -> GrammarSpec | None:
        """What the answer must match, if anything."""
        if self.type == "text":
            return None
        schema = None if self.json_schema is None else self.json_schema.json_schema
        if schema is None:
            return GrammarSpec(kind="json", content=_ANY_OBJECT, field="response_format")
        field = "response_format.json_schema.schema"
        return GrammarSpec(kind="json", content=as_json(schema), field=field)


class StructuredOutputs(Strict):
    """vLLM's way to ask for one of many kinds of text."""

    place: ClassVar[str] = "structured_outputs."
    unsupported: ClassVar[Mapping[str, tuple[Any, ...]]] = {"structural_tag": ()}

    schema_of_json: Schema | None = Field(None, alias="json")
    regex: str | None = Field(None, min_length=1)
    choice: Choices | None = None
    grammar: str | None = Field(None, min_length=1)
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        num_given = sum(value is not None for value in self._contents().values())
        if num_given + bool(self.json_object) != 1:
            raise fault("", "it must have one of json, regex, choice, grammar and json_object")
        return self

    def spec(self) -> GrammarSpec:
        """What the answer must match."""
        found = {name: value for name, value in self._contents().items() if value is not None}
        name, value = next(iter(found.items()), ("json_object", _ANY_OBJECT))
        return GrammarSpec(
            kind=KINDS.get(name, "json"),
            content=value if isinstance(value, str) else as_json(value),
            field=f"structured_outputs.{name}",
            whitespace="" if self.disable_any_whitespace else self.whitespace_pattern,
            is_closed=self.disable_additional_properties,
        )

    def _contents(self) -> dict[str, Any]:
        return {
            "json": self.schema_of_json,
            "regex": self.regex,
            "choice": self.choice,
            "grammar": self.grammar,
        }


def as_json(value: Any) -> str:
    """Write a value as JSON, always in the same way."""
    return msgspec.json.encode(value).decode()
