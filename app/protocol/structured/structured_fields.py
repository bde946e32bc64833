"""The request fields that say what an answer must match."""

from typing import Self

from pydantic import Field, model_validator

from app.grammars.grammar_spec import GrammarSpec
from app.protocol.sampling_fields import SamplingFields
from app.protocol.strict import fault
from app.protocol.structured.formats import (
    KINDS,
    Choices,
    ResponseFormat,
    Schema,
    StructuredOutputs,
    as_json,
)


class StructuredFields(SamplingFields):
    """What an answer must match, in one of several ways."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = Field(None, min_length=1)
    guided_choice: Choices | None = None
    guided_grammar: str | None = Field(None, min_length=1)
    guided_whitespace_pattern: str | None = Field(None, min_length=1)

    @property
    def grammar_spec(self) -> GrammarSpec | None:
        """What the answer must match, if anything."""
        return next(iter(self._specs()), None)

    def _specs(self) -> list[GrammarSpec]:
        own = [
            GrammarSpec(
                kind=kind,
                content=value if isinstance(value, str) else as_json(value),
                field=f"guided_{name}",
                whitespace=self.guided_whitespace_pattern,
            )
            for name, kind in KINDS.items()
            if (value := getattr(self, f"guided_{name}")) is not None
        ]
        others = [wish.spec() for wish in (self.response_format, self.structured_outputs) if wish]
        return [spec for spec in (*others, *own) if spec is not None]

    @model_validator(mode="after")
    def _check_grammar(self) -> Self:
        specs = self._specs()
        if len(specs) > 1:
            field = specs[1].field.partition(".")[0]
            raise fault(field, f"it cannot be used with {specs[0].field}")
        if specs and self.ignore_eos:
            raise fault("ignore_eos", f"it cannot be used with {specs[0].field}")
        if self.guided_whitespace_pattern is not None and self.guided_json is None:
            raise fault("guided_whitespace_pattern", "it needs guided_json")
        return self
