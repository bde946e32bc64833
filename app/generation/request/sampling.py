"""From the fields of a request to the engine's sampling parameters."""

import secrets
from collections.abc import Mapping
from typing import TypeVar

from app.protocol.generation_fields import GenerationFields
from engine.types import SamplingParams

BadWords = tuple[tuple[int, ...], ...]
RequestT = TypeVar("RequestT", bound=GenerationFields)


def with_defaults(request: RequestT, defaults: Mapping[str, float]) -> RequestT:
    """Fill in the model's own defaults where a request names no value; a beam search takes none.

    Args:
        defaults: field of a request -> value.
    """
    if request.use_beam_search:
        return request
    missing = {name: defaults[name] for name in defaults.keys() - request.model_fields_set}
    return request.model_copy(update=missing) if missing else request


def is_ranked(request: GenerationFields) -> bool:
    """Whether more sequences are sampled than returned; a beam search ranks by itself."""
    is_drawn = request.temperature > 0 and not request.use_beam_search
    return is_drawn and request.num_candidates > request.n


def sampling_params(
    request: GenerationFields, max_tokens: int, bad_words: BadWords
) -> SamplingParams:
    """Return the parameters of one prompt.

    Greedy sequences are all equal, so the engine is asked for one.

    Args:
        max_tokens: at least 1.
        bad_words: token ids of the request's bad words.
    """
    if request.use_beam_search:
        return _beam_params(request, max_tokens)
    listed = _distinct(request.logprob_token_ids)
    return SamplingParams(
        max_tokens=max_tokens,
        n=request.num_candidates if request.temperature > 0 else 1,
        # negative zero means greedy too
        temperature=abs(request.temperature),
        top_k=max(request.top_k, 0),
        top_p=request.top_p,
        min_p=request.min_p,
        # equal prompts get different texts unless the client fixes a seed; -1 fixes none
        seed=secrets.randbits(63) if request.seed in (None, -1) else request.seed,
        stop_token_ids=_distinct(request.stop_token_ids),
        ignore_eos=request.ignore_eos,
        min_tokens=min(request.min_tokens, max_tokens),
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=tuple((int(token), bias) for token, bias in request.logit_bias.items()),
        allowed_token_ids=_distinct(request.allowed_token_ids or []),
        bad_words=bad_words,
        deterministic=request.deterministic,
        num_logprobs=len(listed) or _num_logprobs(request),
        logprob_token_ids=listed,
        counts_blocks=request.include_metrics,
    )


def scoring_params(last_token: int, num_logprobs: int, *, deterministic: bool) -> SamplingParams:
    """Return parameters that score a prompt: all tokens but the last are given, the last is forced.

    No token beyond the prompt is generated, so even a prompt that fills the context can be scored.
    """
    return SamplingParams(
        max_tokens=1,
        temperature=0.0,
        ignore_eos=True,
        allowed_token_ids=(last_token,),
        deterministic=deterministic,
        prompt_logprobs=num_logprobs,
        num_logprobs=num_logprobs,
    )


def _beam_params(request: GenerationFields, max_tokens: int) -> SamplingParams:
    return SamplingParams(
        max_tokens=max_tokens,
        n=request.n,
        beam_width=request.num_candidates,
        length_penalty=request.length_penalty,
        early_stopping=request.early_stopping,
        report_beams=request.stream,
        stop_token_ids=_distinct(request.stop_token_ids),
        ignore_eos=request.ignore_eos,
        min_tokens=min(request.min_tokens, max_tokens),
        deterministic=request.deterministic,
        num_logprobs=_num_logprobs(request),
        counts_blocks=request.include_metrics,
    )


def _num_logprobs(request: GenerationFields) -> int | None:
    if request.num_logprobs is None and is_ranked(request):
        return 0
    return request.num_logprobs


def _distinct(ids: list[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(ids))
