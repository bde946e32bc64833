"""Rules of a request that contradict each other: which tokens may be chosen, and which may not."""

from collections.abc import Iterable

from app.protocol.generation_fields import GenerationFields
from engine.errors import InvalidRequest
from engine.types import SamplingParams

# a bias that stands for a ban: https://platform.openai.com/docs/api-reference/completions/create
_BAN = -100.0


def check_rules(sampling: SamplingParams, eos_token_ids: Iterable[int], vocab_size: int) -> None:
    """Check that the rules, taken together, leave a token for the first place.

    Later places are freer, but for bad words of several tokens, which depend on what comes before.

    Raises:
        InvalidRequest: naming the field that rules out the last one.
    """
    allowed = sampling.allowed_token_ids or range(vocab_size)
    ends = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_token_ids)}
    banned_by = {
        "bad_words": {word[0] for word in sampling.bad_words if len(word) == 1},
        "logit_bias": {token for token, bias in sampling.logit_bias if bias <= _BAN},
        "min_tokens": ends if sampling.min_tokens else set(),
    }
    banned: set[int] = set()
    for field, tokens in banned_by.items():
        banned |= tokens
        # most often few are banned of many
        if len(banned) >= len(allowed) and banned.issuperset(allowed):
            raise ruled_out(field)


def ruled_out(field: str | None) -> InvalidRequest:
    """Make the error of a request whose rules leave no token to choose."""
    name = field or "the request"
    return InvalidRequest(
        f"{name} leaves no token that the other rules of the request allow", param=field
    )


def late_rule(request: GenerationFields) -> str | None:
    """The field that rules out the last token where `check_rules` found one left."""
    if request.bad_words:
        return "bad_words"
    if request.allowed_token_ids:
        return "allowed_token_ids"
    if request.min_tokens:
        return "min_tokens"
    return None if request.grammar_spec is None else request.grammar_spec.field
