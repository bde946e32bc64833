"""From a checked request to what the engine needs: token ids, sampling parameters, text options."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from app.generation.request.answer_size import AnswerSize
from app.generation.request.cut import WHOLE, Cut
from app.generation.request.heads import Head, heads_of
from app.generation.request.prompt_encoder import PromptEncoder
from app.generation.request.replies import reply_of
from app.generation.request.rules import check_rules, late_rule
from app.generation.request.sampling import BadWords, is_ranked, sampling_params, scoring_params
from app.grammars.grammar_spec import GrammarSpec
from app.protocol.chat_request import ChatRequest
from app.protocol.completion_request import CompletionRequest
from app.protocol.generation_fields import GenerationFields
from app.text.reply.formats import ReplyFormat
from app.text.text_options import TextOptions
from engine.errors import InvalidRequest, PromptTooLong
from engine.types import IntColumn, SamplingParams

# (token ids of a prompt, most tokens to generate) -> its parameters; see `_sampling`
_MakeSampling = Callable[[IntColumn, int], SamplingParams | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt to continue or to score.

    Attributes:
        name: of the prompt in the request, for errors.
        ids: int32 token ids.
        parts: of its text as the client wrote it, one per token, where it is to be echoed; None
            where it gave ids.
        sampling: None where nothing is asked of the engine.
    """

    name: str
    ids: IntColumn
    parts: tuple[str, ...] | None = None
    sampling: SamplingParams | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """What all prompts of one HTTP request have in common.

    Attributes:
        text: how tokens become text.
        num_choices: sequences to return for each prompt.
        num_candidates: sequences to make for each prompt; the best of them are returned.
        is_scoring: no token is to be generated. The engine gets each prompt without its last token
            and is made to sample that one, so that it reports the log-probabilities of all.
        is_search: a beam search, whose texts are known only at its end.
        stream_interval: tokens that a chunk of a stream has at least, but for the first and last.
        session_id: of the conversation, as the client calls it.
        prompt_text: what the model sees of a chat, where it is to be shown.
        reply: how each choice is to be taken apart; None where it is text and nothing else.
        heads: with which the prompt begins and that are to stay cached.
    """

    text: TextOptions
    num_choices: int = 1
    num_candidates: int = 1
    is_scoring: bool = False
    is_search: bool = False
    stream_interval: int = 1
    session_id: str | None = None
    prompt_text: str | None = None
    reply: ReplyFormat | None = None
    heads: tuple[Head, ...] = ()


async def prepare_completion(
    encoder: PromptEncoder, request: CompletionRequest
) -> tuple[list[Prompt], GenerationOptions]:
    """Prepare a request of /v1/completions.

    Raises:
        InvalidRequest: if a token id does not exist, a prompt has no tokens, the rules allow none,
            or the answer would be too large.
        PromptTooLong: if a prompt leaves no room for the first token to generate.
    """
    text = _text_options(request, starts_text=False, echo=request.echo)
    _check_options(encoder, request)
    make_sampling = await _sampling_maker(encoder, request, text, request.grammar_spec)
    named = request.named_prompts()
    encoded = await encoder.encode(
        named,
        add_special_tokens=request.add_special_tokens,
        min_output=_min_output(request),
        cut=_cut(encoder, request),
    )
    size = AnswerSize(request, encoder.max_answer_items)
    most = [
        size.add(len(ids), _max_tokens(encoder, request, name, ids))
        for (name, _), ids in zip(named, encoded, strict=True)
    ]
    prompts = [
        Prompt(
            name=name,
            ids=ids,
            parts=await _parts(encoder, request, content) if request.echo else None,
            sampling=make_sampling(ids, max_tokens),
        )
        for (name, content), ids, max_tokens in zip(named, encoded, most, strict=True)
    ]
    return prompts, _options(request, text)


async def _parts(
    encoder: PromptEncoder, request: CompletionRequest, content: str | list[int]
) -> tuple[str, ...] | None:
    if not isinstance(content, str):
        return None
    parts = await encoder.parts(content, add_special_tokens=request.add_special_tokens)
    return _cut(encoder, request).apply(parts)


async def prepare_chat(
    encoder: PromptEncoder, request: ChatRequest
) -> tuple[list[Prompt], GenerationOptions]:
    """Prepare a request of /v1/chat/completions, which has one prompt; see `prepare_completion`."""
    name = "messages"
    _check_options(encoder, request)
    ids = await encoder.encode_chat(
        request.messages,
        request.template_options(),
        _cut(encoder, request),
        min_output=_min_output(request),
    )
    reply, spec = reply_of(encoder, request, ids)
    text = _text_options(request, starts_text=True)
    if reply is not None:
        text = replace(text, kept_special=encoder.vocabulary.special_ids_of(reply.markers))
    make_sampling = await _sampling_maker(encoder, request, text, spec)
    size = AnswerSize(request, encoder.max_answer_items)
    max_tokens = size.add(len(ids), _max_tokens(encoder, request, name, ids))
    prompt = Prompt(name=name, ids=ids, sampling=make_sampling(ids, max_tokens))
    shown = None
    if request.return_prompt_text:
        shown = await encoder.offload.run(len(ids), lambda: encoder.decode(ids))
    heads = await heads_of(encoder, request, ids)
    options = replace(_options(request, text), reply=reply, prompt_text=shown, heads=heads)
    return [prompt], options


def _cut(encoder: PromptEncoder, request: GenerationFields) -> Cut:
    """Return what the request wants to keep of its prompts."""
    wanted, most = request.truncate_prompt_tokens, encoder.max_model_len - _min_output(request)
    if wanted is None:
        return WHOLE
    if wanted > most:
        raise InvalidRequest(
            f"truncate_prompt_tokens is above the {most} tokens that leave room for output",
            param="truncate_prompt_tokens",
        )
    return Cut(
        num_tokens=most if wanted == -1 else wanted, from_left=request.truncation_side == "left"
    )


def _text_options(
    request: GenerationFields, *, starts_text: bool, echo: bool = False
) -> TextOptions:
    return TextOptions(
        stops=tuple(request.stop),
        min_tokens=request.min_tokens,
        stop_token_ids=frozenset(request.stop_token_ids),
        include_stop=request.include_stop_str_in_output,
        skip_special=request.skip_special_tokens,
        starts_text=starts_text,
        num_logprobs=request.num_logprobs,
        echo=echo,
        num_prompt_logprobs=request.prompt_logprobs,
        late_rule=late_rule(request),
        repetition=request.repetition_limit,
    )


async def _sampling_maker(
    encoder: PromptEncoder,
    request: GenerationFields,
    text: TextOptions,
    spec: GrammarSpec | None,
) -> _MakeSampling:
    """Encode the options that all prompts of a request share."""
    bad_words = await encoder.encode_bad_words(request.bad_words)
    grammar = None if spec is None else await encoder.grammars.compile(spec)
    if not _is_scoring(request):
        rules = sampling_params(request, 1, bad_words)
        check_rules(rules, encoder.eos_token_ids, encoder.vocab_size)
    stop_pattern = None
    if request.use_beam_search and request.stop:
        stop_pattern = await encoder.stop_pattern(
            request.stop,
            skip_special=request.skip_special_tokens,
            min_tokens=request.min_tokens,
        )
    parts = {
        "prompt_logprobs": text.num_scored,
        "stop_pattern": stop_pattern,
        "grammar": grammar,
    }
    return partial(_sampling, request, parts, bad_words)


def _check_options(encoder: PromptEncoder, request: GenerationFields) -> None:
    for index, stop in enumerate(request.stop):
        encoder.check_text(f"stop[{index}]", stop)
    encoder.check_ids("stop_token_ids", request.stop_token_ids)
    encoder.check_ids("allowed_token_ids", request.allowed_token_ids or [])
    encoder.check_ids("logprob_token_ids", request.logprob_token_ids)
    encoder.check_keys("logit_bias", request.logit_bias)
    if request.min_tokens > encoder.max_model_len:
        raise InvalidRequest(
            f"min_tokens is above the model's context of {encoder.max_model_len} tokens",
            param="min_tokens",
        )
    limit = request.output_limit
    if limit is not None and limit > encoder.max_model_len:
        raise PromptTooLong(
            f"the model's context is {encoder.max_model_len} tokens, but {limit} were asked for "
            "as output",
            param=request.output_limit_name,
            limit=encoder.max_model_len,
            got=limit,
        )


def _max_tokens(
    encoder: PromptEncoder, request: GenerationFields, name: str, ids: IntColumn
) -> int:
    """Most tokens to generate behind a prompt: what was asked for, as far as there is room."""
    room = encoder.room(name, ids, min_output=_min_output(request))
    limit = request.output_limit
    return room if limit is None else min(limit, room)


def _sampling(
    request: GenerationFields,
    parts: dict[str, Any],
    bad_words: BadWords,
    ids: IntColumn,
    max_tokens: int,
) -> SamplingParams | None:
    """Return the parameters of one prompt, or None where nothing is asked of the engine.

    Args:
        parts: fields of the parameters that no field of the request has as it is.
        max_tokens: 0 if the prompt is only scored.
    """
    if max_tokens > 0:
        sampling = sampling_params(request, max_tokens, bad_words)
        return replace(sampling, **parts)
    num_scored = parts["prompt_logprobs"]
    # nothing predicts the first token
    if num_scored is None or len(ids) == 1:
        return None
    return scoring_params(ids[-1], num_scored, deterministic=request.deterministic)


def _options(request: GenerationFields, text: TextOptions) -> GenerationOptions:
    return GenerationOptions(
        text=text,
        num_choices=request.n,
        num_candidates=request.num_candidates if is_ranked(request) else request.n,
        is_scoring=_is_scoring(request),
        is_search=request.use_beam_search,
        stream_interval=request.stream_interval if request.stream else 1,
        session_id=request.session_id,
    )


def _is_scoring(request: GenerationFields) -> bool:
    return request.output_limit == 0


def _min_output(request: GenerationFields) -> int:
    """Tokens that must fit behind each prompt."""
    return 0 if _is_scoring(request) else 1
