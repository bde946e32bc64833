"""https://pypi.org/project/schemathesis: the description of the API is true."""

from typing import Any

import pytest

from app.http.api.openapi import openapi
from tests.app.api.chat.replies import EOS, saying, tokenizer
from tests.app.api.server import make_app
from tests.fakes.scripted_engine import FakeEngineClient, Script

schemathesis = pytest.importorskip("schemathesis")
pytestmark = [pytest.mark.clients, pytest.mark.ray, pytest.mark.filterwarnings("default")]

OPERATIONS = [
    (method.upper(), path)
    for path, operations in openapi()["paths"].items()
    for method in operations
]


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_what_the_description_allows_is_answered_as_it_says(method: str, path: str) -> None:
    from hypothesis import HealthCheck, given, settings
    from schemathesis import GenerationMode, checks

    is_pooled = path in ("/v1/embeddings", "/v1/score")
    engine = FakeEngineClient([Script(vector=[1.0])]) if is_pooled else saying("x")
    app = make_app(engine, tokenizer=tokenizer(), eos_token_ids=(EOS,))
    description = schemathesis.openapi.from_asgi("/openapi.json", app)
    operation = description[path][method]

    for mode in GenerationMode:

        @settings(
            max_examples=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def answered(case: Any) -> None:
            case.call_and_validate(checks=[checks.not_a_server_error, *_conformance()])

        answered()


def _conformance() -> list[Any]:
    from schemathesis.specs.openapi import checks

    return [
        checks.response_schema_conformance,
        checks.content_type_conformance,
        checks.status_code_conformance,
        checks.response_headers_conformance,
    ]
