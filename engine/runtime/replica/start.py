"""Starts an engine replica: its gang, the first token, the pinned prefixes."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from engine.config import EngineConfig, PrefixConfig
from engine.errors import EngineError
from engine.runtime.replica.client_session import CLIENT_LIMITS, ClientLimits
from engine.runtime.replica.gang import GangOptions, start_gang
from engine.runtime.replica.pin_at_start import (
    own_client,
    pin_again,
    pin_configured_prefixes,
    pin_prefixes_of_peers,
)
from engine.runtime.replica.supervisor import Supervisor
from engine.runtime.replica.swap_arenas import SwapArenas
from engine.types import FinishReason, SamplingParams, int32


async def no_peers() -> list[PrefixConfig]:
    """What the peers of a replica that has none have pinned."""
    return []


async def start_replica(
    config: EngineConfig,
    options: GangOptions,
    *,
    replica: str,
    limits: ClientLimits = CLIENT_LIMITS,
    is_alive: Callable[[int], Awaitable[bool]] | None = None,
    pins_of_peers: Callable[[], Awaitable[list[PrefixConfig]]] = no_peers,
) -> Supervisor:
    """Start a replica that takes requests.

    Args:
        replica: its tag.
        is_alive: see `Supervisor`.
        pins_of_peers: asks the other replicas what they have pinned.

    Raises:
        ServeError: with the reason, if it cannot be started; nothing is left then.
    """

    async def make_ready(supervisor: Supervisor, is_first: bool) -> None:
        await compute_first_token(supervisor, config)
        if is_first:
            await pin_configured_prefixes(supervisor, config.pinned_prefixes)
        await pin_again(supervisor)
        if is_first and config.scheduler.pinned_prefix_share:
            await pin_prefixes_of_peers(supervisor, await pins_of_peers())

    # every gang of the replica gets the same ones, and finds what the one before it has left there
    arenas = SwapArenas(config, num_gpus_per_rank=options.num_gpus_per_rank)
    supervisor = Supervisor(
        partial(start_gang, config, options, arenas),
        config,
        make_ready,
        replica=replica,
        limits=limits,
        is_alive=is_alive,
    )
    supervisor.close_last(arenas.close)
    try:
        await supervisor.start()
    except BaseException:
        await asyncio.shield(supervisor.close())
        raise
    return supervisor


async def compute_first_token(supervisor: Supervisor, config: EngineConfig) -> None:
    """Let scheduler and ranks make a step: only a token shows that they work together.

    Raises:
        EngineError: if none comes out.
    """
    # a token that the model was trained on, where one is known
    token = next(iter(config.model.eos_token_ids), 0)
    client = own_client(supervisor)
    reason = FinishReason.NONE
    try:
        stream = await client.submit(
            int32([token]), SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
        )
        async for delta in stream:
            reason = delta.finish_reason
    finally:
        await client.close()
    if reason is not FinishReason.LENGTH:
        raise EngineError(f"the first step gave no token: {reason.name}")
