"""Options of what one HTTP request may ask for, and how long it may take."""

from typing import Any

from pydantic import BaseModel

from app import limits
from app.settings.option import STRICT, option


class Limits(BaseModel):
    """What one HTTP request may ask for."""

    model_config = STRICT

    max_body_mib: float = option(
        "largest body of a request", default=limits.MAX_BODY_BYTES / (1 << 20), gt=0, le=64
    )
    max_body_values: int = option(
        "most keys and values of a body, inner ones too",
        default=limits.MAX_BODY_VALUES,
        ge=1024,
        le=1 << 24,
    )
    max_answer_items: int = option(
        "most token ids, log-probabilities and repeated tokens of prompts that one answer lists",
        default=limits.MAX_ANSWER_ITEMS,
        ge=1024,
        le=1 << 24,
    )
    max_held_mib: float = option(
        "bodies that wait in one ingress replica to become token ids, in all; further ones are "
        "answered 503 with `retry-after`",
        default=limits.MAX_HELD_BYTES / (1 << 20),
        ge=1,
        le=1 << 20,
    )
    max_client_held_mib: float = option(
        "the same for each API key, where `api_keys_file` names some; answered 429",
        default=limits.MAX_CLIENT_HELD_BYTES / (1 << 20),
        ge=1,
        le=1 << 20,
    )


def _deadline(doc: str, default: float) -> Any:
    return option(doc, default=default, gt=0, le=86_400, allow_inf_nan=False)


class DeadlineOptions(BaseModel):
    """How long the parts of one HTTP request may take; clients may ask for less."""

    model_config = STRICT

    queue_s: float = _deadline(
        "longest time that a request may wait for a place in the batch; one that would probably "
        "wait for longer is refused at once, and one that has is ended before anything of it is "
        "computed, both with 429 and `Retry-After`",
        limits.QUEUE_S,
    )
    upload_s: float = _deadline(
        "longest time that the body of a request may take to come; then the answer is 408",
        limits.UPLOAD_S,
    )
    first_token_s: float = _deadline(
        "longest time until the first output of a request that was accepted; then the answer is "
        "504. Beam searches and scores of prompts, which come at once, have `whole_s`",
        limits.FIRST_TOKEN_S,
    )
    gap_s: float = _deadline(
        "longest time between two outputs; above `resume_timeout_s`, so that an answer survives "
        "the loss of its engine",
        limits.GAP_S,
    )
    whole_s: float = _deadline("longest time of a whole answer", limits.WHOLE_S)
    write_s: float = _deadline(
        "longest time that a client may take to read on while a part of its answer waits to be "
        "sent; then the answer is cut, as it is 30 s after the last byte that was taken",
        limits.WRITE_S,
    )
