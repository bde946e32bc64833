"""All bodies are refused by the application, in its envelope."""

from load_tests.bench.neighbours.bad_bodies import SMALL_BYTES, large_bodies, small_bodies
from tests.app.api.chat.replies import saying, tokenizer
from tests.app.api.direct import send
from tests.app.api.server import make_app
from tests.app.fuzz.run import faults_of

# enough for what is refused for its size or its number of values
MOST_BYTES = 1 << 20


async def test_every_body_is_refused() -> None:
    small, large = small_bodies(), large_bodies(MOST_BYTES)
    assert max(len(request.body) for request in small) <= SMALL_BYTES
    assert {len(request.body) for request in large[:-1]} <= set(
        range(MOST_BYTES - 16, MOST_BYTES + 1)
    )
    app = make_app(saying("x"), tokenizer=tokenizer(), max_body_bytes=MOST_BYTES)
    for request in small + large:
        answer = await send(app, request.path, request.body)
        assert 400 <= answer.status < 500, request.name
        assert not faults_of(request.path, answer), request.name


def test_names_differ() -> None:
    names = [request.name for request in small_bodies() + large_bodies(1000)]
    assert len(set(names)) == len(names)
