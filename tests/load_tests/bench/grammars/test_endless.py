"""Schemas of texts without an end."""

import json

from jsonschema import Draft202012Validator

from load_tests.bench.grammars.endless import endless_schema


def test_each_number_has_a_schema_of_its_own_that_no_short_text_fulfils() -> None:
    schemas = [json.loads(endless_schema(number)) for number in range(3)]
    items = [{"name": "a", "count": 1, "kind": "red"}] * 100
    records = [{f"{key}{end}": value for key, value in items[0].items()} for end in ("", 1, 2)]
    for number, (schema, record) in enumerate(zip(schemas, records, strict=True)):
        record[f"kind{number or ''}"] = f"red{number or ''}"
        validator = Draft202012Validator(schema)
        assert not validator.is_valid([record] * 100)
        assert validator.is_valid([record] * 10_000)
        assert not Draft202012Validator(schemas[number - 1]["items"]).is_valid(record)
