import json

import pytest
from starlette.routing import Route

from app.http.schemas import BODIES, main
from tests.app.api.server import make_app
from tests.fakes.scripted_engine import FakeEngineClient


def test_every_route_with_a_body_is_there() -> None:
    routes = [route for route in make_app(FakeEngineClient([])).routes if isinstance(route, Route)]
    assert {route.path for route in routes if "POST" in (route.methods or ())} == set(BODIES)


def test_the_schemas_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    schemas = json.loads(capsys.readouterr().out)
    for path, model in BODIES.items():
        assert set(schemas[path]["properties"]) == set(model.model_fields)
