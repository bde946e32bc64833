"""No body, however odd, gets anything but a request or an error that names a field."""

import re
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.protocol.chat_request import ChatRequest
from app.protocol.completion_request import CompletionRequest
from app.protocol.errors import MalformedBody
from app.protocol.parsing import parse_object, parse_request
from app.protocol.strict import Strict
from engine.errors import InvalidRequest
from tests.app.api.server import chat_body, completion_body

GOOD: dict[type[Strict], dict[str, Any]] = {
    ChatRequest: chat_body(),
    CompletionRequest: completion_body(),
}

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    | st.sampled_from(["user", "text", "image_url", "", "a" * 300, 2**63, -1, 0, 1.5])
)
NAMES = st.sampled_from(["role", "content", "type", "text", "name", "a"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize("model", GOOD)
@given(st.data())
@settings(max_examples=200)
def test_a_mutated_body_is_accepted_or_refused_by_name(
    model: type[Strict], data: st.DataObject
) -> None:
    fields = [*model.model_fields, *model.unsupported, "nonsense"]
    body = dict(GOOD[model])
    for name in data.draw(st.lists(st.sampled_from(fields), min_size=1, max_size=3)):
        body[name] = data.draw(VALUES)
    parsed = parse_object(msgspec.json.encode(body))
    refusal = None
    try:
        request, ignored = parse_request(model, parsed, "reject")
        assert isinstance(request, Strict)
        assert set(ignored) <= {*model.ignored, "stream_options.include_obfuscation"}
    except InvalidRequest as error:
        refusal = error
    if refusal is not None:
        assert re.split(r"[.\[]", refusal.param or "")[0] in fields


@given(st.binary(max_size=60) | st.text(st.characters(exclude_categories=["Cs"])).map(str.encode))
@settings(max_examples=150)
def test_random_bytes_are_an_object_or_malformed(body: bytes) -> None:
    with suppress(MalformedBody):
        assert isinstance(parse_object(body), dict)
