"""Before an engine was ready, what needs one is refused; afterwards nothing asks any more."""

from tests.app.api.server import completion_body, in_process, make_app
from tests.app.http.test_middleware import assert_error
from tests.fakes.scripted_engine import FakeEngineClient, Script


async def test_what_needs_an_engine_is_refused_until_one_was_ready() -> None:
    client = FakeEngineClient([Script(tokens=[5])], ready=False)
    async with in_process(make_app(client)) as http:
        for path in ("/v1/models", "/v1/models/tiny", "/v1/prefixes"):
            answer = await http.get(path)
            assert_error(answer, 503, "starting")
            assert answer.headers["retry-after"] == "1"
        for path in ("/v1/completions", "/v1/chat/completions"):
            assert_error(await http.post(path, json=completion_body()), 503, "starting")
        assert client.prompts == []
        assert (await http.get("/live")).status_code == 200
        assert (await http.post("/tokenize", json={"prompt": "a"})).status_code == 200
        client.ready = True
        assert (await http.get("/v1/models")).status_code == 200
        client.ready = False
        # what an engine that was ready cannot do has errors of its own
        assert (await http.get("/v1/models")).status_code == 200
        assert_error(await http.get("/health"), 503, "starting")
