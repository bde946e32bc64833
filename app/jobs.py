"""From a checked request to what the engine needs: token ids, sampling parameters, text options."""

import secrets
from dataclasses import dataclass

from app.prompt_encoder import PromptEncoder
from app.protocol.chat_request import ChatRequest
from app.protocol.completion_request import CompletionRequest
from app.protocol.fields import GenerationFields
from app.text.choice_text import TextOptions
from engine.errors import PromptTooLong
from engine.types import IntColumn, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One sequence to generate.

    Attributes:
        name: of the prompt in the request, for errors.
        ids: int32 token ids.
    """

    name: str
    ids: IntColumn
    sampling: SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one request asks the engine for."""

    prompts: tuple[Prompt, ...]
    text: TextOptions


class JobMaker:
    """Prepares the requests of both generating routes."""

    def __init__(self, encoder: PromptEncoder, max_model_len: int) -> None:
        self._encoder = encoder
        self._max_model_len = max_model_len

    async def completion(self, request: CompletionRequest) -> Job:
        """Prepare a request of /v1/completions.

        Raises:
            InvalidRequest: if a token id does not exist or a prompt has no tokens.
            PromptTooLong: if a prompt leaves no room for one token.
        """
        self._check(request)
        named = request.named_prompts()
        encoded = await self._encoder.encode(named, add_special_tokens=request.add_special_tokens)
        prompts = [
            self._prompt(name, ids, request) for (name, _), ids in zip(named, encoded, strict=True)
        ]
        return Job(prompts=tuple(prompts), text=_text_options(request, starts_text=False))

    async def chat(self, request: ChatRequest) -> Job:
        """Prepare a request of /v1/chat/completions; see `completion`."""
        self._check(request)
        ids = await self._encoder.encode_chat(
            request.messages, add_generation_prompt=request.add_generation_prompt
        )
        prompt = self._prompt("messages", ids, request)
        return Job(prompts=(prompt,), text=_text_options(request, starts_text=True))

    def _check(self, request: GenerationFields) -> None:
        self._encoder.check_ids("stop_token_ids", request.stop_token_ids)
        limit = request.output_limit
        if limit is not None and limit > self._max_model_len:
            raise PromptTooLong(
                f"the model's context is {self._max_model_len} tokens, but {limit} were asked for "
                "as output",
                param=request.output_limit_name,
                limit=self._max_model_len,
                got=limit,
            )

    def _prompt(self, name: str, ids: IntColumn, request: GenerationFields) -> Prompt:
        room = self._encoder.room(name, ids)
        limit = room if request.output_limit is None else min(request.output_limit, room)
        return Prompt(name=name, ids=ids, sampling=_sampling(request, limit))


def _sampling(request: GenerationFields, max_tokens: int) -> SamplingParams:
    return SamplingParams(
        max_tokens=max_tokens,
        # negative zero means greedy too
        temperature=abs(request.temperature),
        top_k=max(request.top_k, 0),
        top_p=request.top_p,
        min_p=request.min_p,
        # equal prompts get different texts unless the client fixes a seed
        seed=secrets.randbits(63) if request.seed is None else request.seed,
        stop_token_ids=tuple(dict.fromkeys(request.stop_token_ids)),
        ignore_eos=request.ignore_eos,
        num_logprobs=request.num_logprobs,
    )


def _text_options(request: GenerationFields, *, starts_text: bool) -> TextOptions:
    return TextOptions(
        stops=tuple(request.stop),
        stop_token_ids=frozenset(request.stop_token_ids),
        include_stop=request.include_stop_str_in_output,
        skip_special=request.skip_special_tokens,
        starts_text=starts_text,
        logprobs=request.num_logprobs is not None,
    )
