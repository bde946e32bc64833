"""Requests of a kind: plain, streamed, with several choices, with beams."""

import asyncio
from typing import Any

import httpx

from tests.app.api.answers import events, summed, text_of

PLAIN: dict[str, Any] = {}
STREAMED: dict[str, Any] = {"stream": True}
SEVERAL: dict[str, Any] = {"n": 3}
BEAMS: dict[str, Any] = {"n": 3, "use_beam_search": True}
DRAWN = [PLAIN, STREAMED, SEVERAL, {**SEVERAL, **STREAMED}]
KINDS = [*DRAWN, BEAMS, {**BEAMS, **STREAMED}]


async def ask(http: httpx.AsyncClient, route: str, *bodies: dict[str, Any]) -> list[httpx.Response]:
    """Send requests at once; their answers come whole, in order."""
    return await asyncio.gather(*(http.post(route, json=body) for body in bodies))


async def choices_of(
    http: httpx.AsyncClient, route: str, *bodies: dict[str, Any]
) -> list[list[dict[str, Any]]]:
    """Return the choices of each request: index, text, token_ids and finish_reason at least."""
    answers = await ask(http, route, *bodies)
    return [_choices(body, answer) for body, answer in zip(bodies, answers, strict=True)]


def _choices(body: dict[str, Any], answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    if body.get("stream"):
        choices = summed(events(answer.text))
    else:
        choices = [{**choice, "text": text_of(choice)} for choice in answer.json()["choices"]]
    assert [choice["index"] for choice in choices] == list(range(body.get("n", 1)))
    return choices
