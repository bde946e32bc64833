"""No value of any field is an error of the server, and each refusal has its route's shape."""

from typing import Any

import pytest

from app.http.api.generate_routes import GENERATING
from tests.app.api.chat.replies import EOS, saying, tokenizer
from tests.app.api.server import in_process, make_app

HI: Any = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": HI, "max_tokens": 5},
}
ODD: list[Any] = [
    None, True, 0, -1, 1.5, 10**30, "", "x", "\U0001f600", [], [None], ["x"], [{}], {}, {"x": 1},
    [[]], {"type": "x"}, [{"type": "function"}], [{"type": "text", "role": "user"}],
    {"type": ["x"]}, [{"type": {}}], {"type": "function", "function": None},
]  # fmt: skip


@pytest.mark.parametrize("path", BODIES)
async def test_odd_values_are_served_or_refused(path: str) -> None:
    app = make_app(saying("x"), tokenizer=tokenizer(), eos_token_ids=(EOS,))
    # forms that a grammar is compiled for have tests of their own
    fields = set(GENERATING[path].body.model_fields) - {"guided_regex", "guided_grammar"}
    async with in_process(app) as http:
        for field in sorted(fields):
            for value in ODD:
                body = {**BODIES[path], field: value}
                answer = await http.post(path, json=body)
                assert answer.status_code in (200, 400, 404), (field, value, answer.text)
                if answer.status_code != 200:
                    error = answer.json()["error"]
                    assert error["param"], (field, value, error)
                    assert error["message"]
