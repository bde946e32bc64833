from typing import Any

import pytest

from app.protocol.parsing import parse_request
from app.protocol.prefix_request import SCHEMA
from engine.errors import InvalidRequest

MESSAGES = [{"role": "system", "content": "Be brief."}]


@pytest.mark.parametrize("content", [{"prompt": "a"}, {"prompt": [1, 2]}, {"messages": MESSAGES}])
def test_a_prefix_is_a_text_or_ids_or_messages(content: dict[str, Any]) -> None:
    request, ignored = parse_request(SCHEMA, {"name": "p.1", **content}, "reject")
    assert (request.name, request.ttl_s, ignored) == ("p.1", None, [])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": MESSAGES}, "prompt"),
        ({"prompt": "a", "name": "with space"}, "name"),
        ({"prompt": "a", "name": "x" * 65}, "name"),
        ({"prompt": "a", "ttl_s": 0}, "ttl_s"),
        ({"prompt": "a", "tools": [1]}, "tools"),
    ],
)
def test_another_prefix_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_request(SCHEMA, {"name": "p", **fields}, "reject")
    assert caught.value.param == param
