"""Collects tokens of a stream, so that it comes in fewer chunks."""

from collections.abc import AsyncGenerator

from app.text.beam_text import BeamProgress
from app.text.choice_text import TextDelta, join

# index of a candidate, and what is new of it
ChoiceUpdate = tuple[int, TextDelta | BeamProgress]


async def in_intervals(
    updates: AsyncGenerator[ChoiceUpdate, None], num_tokens: int
) -> AsyncGenerator[ChoiceUpdate, None]:
    """Put the updates of each candidate together until they have so many tokens.

    The first and the last one come at once, and so does the progress of a search. If the source
    fails, what it gave before comes first. Closing the source is up to the caller.
    """
    held: dict[int, list[TextDelta]] = {}
    try:
        async for index, delta in updates:
            if not isinstance(delta, TextDelta):
                yield index, delta
                continue
            is_first = index not in held
            parts = held.setdefault(index, [])
            parts.append(delta)
            size = sum(len(part.token_ids) for part in parts)
            if is_first or size >= num_tokens or delta.finish_reason is not None:
                held[index] = []
                yield index, join(parts)
    except Exception:
        for index, parts in held.items():
            if parts:
                yield index, join(parts)
        raise
