"""The beginnings of a chat's prompt that its client has marked to stay cached."""

from dataclasses import replace
from functools import partial

from app.generation.request.prompt_encoder import PromptEncoder
from app.protocol.chat_request import ChatRequest
from engine.errors import InvalidRequest
from engine.types import IntColumn

# token ids with which a prompt begins, and seconds for which they are to stay cached
Head = tuple[IntColumn, float]


async def heads_of(
    encoder: PromptEncoder, request: ChatRequest, ids: IntColumn
) -> tuple[Head, ...]:
    """Return what each marked head of a conversation has in common with all of it; maybe nothing.

    Args:
        ids: int32 token ids of the whole prompt.
    """
    options = replace(request.template_options(), add_generation_prompt=False, continues_last=False)
    heads = []
    for messages, ttl_s in request.marked_heads():
        try:
            own = await encoder.encode_chat(messages, options)
        except InvalidRequest:
            # a template may refuse to end there; of nothing no block can be pinned
            own = ids[:0]
        # the template may write something behind its last message
        num_common = await encoder.offload.run(len(own), partial(_num_common, own, ids))
        heads.append((ids[:num_common], ttl_s))
    return tuple(heads)


def _num_common(one: IntColumn, other: IntColumn) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
