"""Pinned prefixes that requests name, or have made of their own beginnings."""

import asyncio
from collections.abc import Iterable

from app.generation.request.heads import Head
from app.generation.request.prepare import Prompt
from app.protocol.errors import PrefixNotFound
from engine.errors import EngineError, InvalidRequest, RequestError
from engine.runtime.messages import PrefixInfo, tokens_digest
from engine.runtime.protocol import EngineClient
from engine.types import FinishReason, IntColumn, Pin

PREFIX_FIELD = "prefix_id"


async def find_prefix(
    client: EngineClient, name: str, salt: bytes, param: str | None = None
) -> PrefixInfo:
    """Return a prefix of a tenant.

    Args:
        salt: of the tenant, see `engine.types.Request`.
        param: the field that names it, if one does.

    Raises:
        PrefixNotFound: if there is none.
        EngineError: if no engine can be reached.
    """
    for prefix in await client.prefixes(salt=salt):
        if prefix.name == name:
            return prefix
    raise PrefixNotFound("no prefix of this name is pinned", param=param)


async def check_prefix(
    client: EngineClient, name: str, salt: bytes, prompts: Iterable[Prompt]
) -> None:
    """Return if all prompts begin with a prefix, so that its blocks are theirs.

    Raises:
        PrefixNotFound, EngineError: see `find_prefix`.
        InvalidRequest: if a prompt begins otherwise.
    """
    prefix = await find_prefix(client, name, salt, PREFIX_FIELD)
    for prompt in prompts:
        if tokens_digest(prompt.ids[: prefix.num_tokens]) != prefix.digest:
            raise InvalidRequest(
                f"{prompt.name} does not begin with the {prefix.num_tokens} tokens of the whole "
                "blocks that are pinned under this name",
                param=PREFIX_FIELD,
            )


async def pin_heads(
    client: EngineClient,
    heads: Iterable[Head],
    salt: bytes,
    limit_s: float,
) -> bool:
    """Pin the beginnings of a prompt under names that follow from their tokens.

    Args:
        heads: they stay from now on for their time.
        limit_s: seconds for all of it.

    Returns:
        Whether all are pinned; the server may have no room for them, or they fill no block.
    """
    try:
        async with asyncio.timeout(limit_s):
            for ids, ttl_s in heads:
                await _pin_head(client, ids, ttl_s, salt)
    except (RequestError, EngineError, TimeoutError):
        return False
    return True


async def _pin_head(client: EngineClient, ids: IntColumn, ttl_s: float, salt: bytes) -> None:
    pin = Pin(name=f"head-{tokens_digest(ids).hex()[:32]}", ttl_s=ttl_s)
    known = await client.prefixes(salt=salt)
    if any(prefix.name == pin.name and not prefix.is_warm for prefix in known):
        # another request has it computed at this moment
        return
    if await client.pin_prefix(ids, pin, salt=salt) is not FinishReason.LENGTH:
        raise InvalidRequest("the engine did not compute it", param="messages")
