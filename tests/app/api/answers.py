"""Sending requests and reading answers."""

import json
from typing import Any

from engine.runtime.protocol import EngineClient
from tests.app.api.server import CHAT, COMPLETIONS, chat_body, completion_body, in_process, make_app

BODIES = {COMPLETIONS: completion_body, CHAT: chat_body}


async def post(client: EngineClient, path: str, body: dict[str, Any]) -> Any:
    """Return the answer's object, or the objects of its stream."""
    async with in_process(make_app(client)) as http:
        response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    if body.get("stream"):
        return events(response.text)
    return response.json()


def events(text: str) -> list[dict[str, Any]]:
    *lines, done = text.removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def text_of(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"])
    return str((choice.get("message") or choice["delta"]).get("content", ""))


def summed(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the choices of a stream together, in the order of their indices."""
    parts: dict[int, list[dict[str, Any]]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            parts.setdefault(choice["index"], []).append(choice)
    return [_whole(parts[index]) for index in sorted(parts)]


def _whole(parts: list[dict[str, Any]]) -> dict[str, Any]:
    ends = [part for part in parts if part["finish_reason"] is not None]
    assert ends == [parts[-1]]
    first = [part for part in parts if "prompt_logprobs" in part]
    return {
        "index": parts[0]["index"],
        "text": "".join(map(text_of, parts)),
        "token_ids": [token for part in parts for token in part.get("token_ids", [])],
        "logprobs": _joined([part["logprobs"] for part in parts if part["logprobs"]]),
        "prompt_logprobs": first[0]["prompt_logprobs"] if first else None,
        "finish_reason": parts[-1]["finish_reason"],
        "stop_reason": parts[-1]["stop_reason"],
    }


def _joined(parts: list[dict[str, list[Any]]]) -> dict[str, list[Any]] | None:
    """Join each column."""
    if not parts:
        return None
    return {key: [value for part in parts for value in part[key]] for key in parts[0]}
