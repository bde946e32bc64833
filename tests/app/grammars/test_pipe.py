import io
from typing import Any

from app.grammars.pipe import read_message, write_message


def test_messages_are_read_as_they_were_written() -> None:
    pipe = io.BytesIO()
    messages: list[dict[str, Any]] = [{"a": "é" * 300}, {}, {"b": [1, None]}]
    for message in messages:
        write_message(pipe, message)
    pipe.seek(0)
    assert [read_message(pipe) for _ in range(4)] == [*messages, None]
