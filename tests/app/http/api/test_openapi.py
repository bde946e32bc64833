"""The description of the API says what the routes do."""

from typing import Any

import jsonschema
from starlette.routing import Route

from app.http.schemas import BODIES
from tests.app.api.server import chat_body, in_process, make_app
from tests.fakes.scripted_engine import FakeEngineClient, Script


async def get(path: str) -> Any:
    async with in_process(make_app(FakeEngineClient([Script([5])]))) as http:
        return await http.get(path)


async def test_it_has_every_route_that_there_is() -> None:
    app = make_app(FakeEngineClient([]))
    description = (await get("/openapi.json")).json()
    served = {
        (method.lower(), route.path.replace("{name:path}", "{model}"))
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    described = {
        (method, path) for path, methods in description["paths"].items() for method in methods
    }
    assert described == served - {("get", "/openapi.json"), ("get", "/docs")}


async def test_bodies_are_those_that_parse_requests() -> None:
    description = (await get("/openapi.json")).json()
    for path, model in BODIES.items():
        body = description["paths"][path]["post"]["requestBody"]
        ref = body["content"]["application/json"]["schema"]["$ref"]
        name = ref.rpartition("/")[2]
        assert name == model.__name__
        schema = description["components"]["schemas"][name]
        assert schema["properties"].keys() == model.model_fields.keys()


async def test_a_body_that_is_served_fits_its_schema() -> None:
    description = (await get("/openapi.json")).json()
    schema = {"$ref": "#/components/schemas/ChatRequest", **description}
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(chat_body(temperature=0.5, tools=None, stop="x"))
    assert not validator.is_valid(chat_body(temperature=3))
    assert not validator.is_valid(chat_body(mood=1))


async def test_the_page_names_paths_and_fields_and_has_no_scripts() -> None:
    answer = await get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    for text in ("POST /v1/chat/completions", "<code>temperature</code>", "number from 0 to 2"):
        assert text in answer.text
    assert "<script" not in answer.text
