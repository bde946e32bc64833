"""The application under test, in this process or behind a real socket."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette

from app.http.routes import build_app
from app.protocol.api_settings import ApiSettings
from app.text.tokenizer import Tokenizer
from engine.runtime.protocol import EngineClient
from tests.app.text.tokenizers import chatml_tokenizer

MODEL = "tiny"
MAX_MODEL_LEN = 512
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


def make_app(
    client: EngineClient, *, tokenizer: Tokenizer | None = None, **settings: Any
) -> Starlette:
    tokenizer = tokenizer or chatml_tokenizer()
    defaults = {
        "model_id": MODEL,
        "created_s": 1_700_000_000,
        "max_model_len": MAX_MODEL_LEN,
        "vocab_size": len(tokenizer.vocabulary),
        "system_fingerprint": "pagoda-test",
    }
    return build_app(client, tokenizer, ApiSettings(**{**defaults, **settings}))


def in_process(app: Starlette) -> httpx.AsyncClient:
    """Answers come whole: this transport collects streams."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


@asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    """Serve on a free port of the loopback address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="warning"))
    task = asyncio.ensure_future(server.serve(sockets=[listener]))
    host, port = listener.getsockname()[:2]
    try:
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as http:
            yield http
    finally:
        server.should_exit = True
        await task
        listener.close()


def completion_body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "The quick", **fields}


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "The quick"}], **fields}


def encode(text: str) -> list[int]:
    return chatml_tokenizer().encode(text).tolist()
