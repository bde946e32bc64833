"""POST, GET and DELETE /v1/prefixes: prefixes that a caller pins in the KV cache."""

from typing import Any

from starlette.requests import Request

from app.generation.named_prefix import find_prefix
from app.generation.tenancy import tenant_salt
from app.http.generate_endpoint import check_model
from app.http.services import Services
from app.protocol.chat.messages import cache_marks
from app.protocol.prefix_request import PrefixRequest
from app.text.template_options import TemplateOptions
from engine.errors import EngineError
from engine.runtime.messages import PrefixInfo
from engine.types import FinishReason, IntColumn, Pin


class PrefixEndpoints:
    """The routes of one model. A caller sees only what was pinned with its own key and salt."""

    def __init__(self, services: Services) -> None:
        self._client = services.client
        self._encoder = services.encoder
        self._settings = services.settings
        self._reader = services.reader
        self._held = services.held

    async def pin(self, request: Request) -> dict[str, Any]:
        """Compute and pin a prefix; answer once it is computed."""
        ids, pin, salt = await self._read(request)
        reason = await self._client.pin_prefix(ids, pin, salt=salt)
        if reason is not FinishReason.LENGTH:
            raise EngineError(f"the engine ended a prefix by {reason.name}")
        return _as_json(await find_prefix(self._client, pin.name, salt))

    async def show_all(self, request: Request) -> dict[str, Any]:
        """List the caller's prefixes."""
        prefixes = await self._client.prefixes(salt=_salt_of(request))
        return {"object": "list", "data": [_as_json(prefix) for prefix in prefixes]}

    async def show(self, request: Request) -> dict[str, Any]:
        """Show one prefix of the caller."""
        name = request.path_params["name"]
        return _as_json(await find_prefix(self._client, name, _salt_of(request)))

    async def release(self, request: Request) -> dict[str, Any]:
        """Unpin a prefix of the caller; its blocks become ordinary cached blocks."""
        name, salt = request.path_params["name"], _salt_of(request)
        await find_prefix(self._client, name, salt)
        await self._client.release_prefix(name, salt=salt)
        return {"id": name, "object": "prefix", "deleted": True}

    async def _read(self, request: Request) -> tuple[IntColumn, Pin, bytes]:
        """Return token ids, name and tenant; nothing else of the body is kept."""
        scope, receive, key = request.scope, request.receive, request.state.key_sha256
        with self._held.account(key) as account:
            body = await self._reader.read(PrefixRequest, scope, receive, account)
            request.state.ignored += cache_marks(body.messages or [])
            check_model(body.model, self._settings)
            salt = tenant_salt(key, body.cache_salt)
            return await self._encode(body), Pin(name=body.name, ttl_s=body.ttl_s), salt

    async def _encode(self, body: PrefixRequest) -> IntColumn:
        if body.messages is not None:
            ids = await self._encoder.encode_chat(
                body.messages, TemplateOptions(add_generation_prompt=False)
            )
            self._encoder.room("messages", ids)
            return ids
        assert body.prompt is not None
        [ids] = await self._encoder.encode(
            [("prompt", body.prompt)], add_special_tokens=body.add_special_tokens
        )
        return ids


def _salt_of(request: Request) -> bytes:
    return tenant_salt(request.state.key_sha256, request.query_params.get("cache_salt"))


def _as_json(prefix: PrefixInfo) -> dict[str, Any]:
    return {
        "id": prefix.name,
        "object": "prefix",
        "status": "pinned" if prefix.is_warm else "computing",
        "tokens": prefix.num_tokens,
        "blocks": prefix.num_blocks,
        "expires_in_s": None if prefix.ttl_s is None else round(prefix.ttl_s, 3),
    }
