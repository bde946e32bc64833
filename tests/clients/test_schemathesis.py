"""https://pypi.org/project/schemathesis: the description of the API is true."""

from typing import Any

import pytest

from tests.app.api.chat.replies import EOS, saying, tokenizer
from tests.app.api.server import make_app

schemathesis = pytest.importorskip("schemathesis")
pytestmark = [pytest.mark.clients, pytest.mark.ray, pytest.mark.filterwarnings("default")]

PATHS = ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/tokenize"]


@pytest.mark.parametrize("path", PATHS)
def test_what_fits_the_description_is_answered_as_it_says(path: str) -> None:
    from hypothesis import HealthCheck, given, settings
    from schemathesis import checks

    app = make_app(saying("x"), tokenizer=tokenizer(), eos_token_ids=(EOS,))
    description = schemathesis.openapi.from_asgi("/openapi.json", app)
    operation = description[path]["POST"]

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def answered(case: Any) -> None:
        case.call_and_validate(checks=[checks.not_a_server_error, *_conformance()])

    answered()


def _conformance() -> list[Any]:
    from schemathesis.specs.openapi import checks

    return [checks.response_schema_conformance, checks.content_type_conformance]
