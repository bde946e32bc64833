"""From a checked request to what the engine needs: token ids, sampling parameters, text options."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from app.protocol.chat_request import ChatRequest
from app.protocol.completion_request import CompletionRequest
from app.protocol.fields import GenerationFields
from app.protocol.settings import ApiSettings
from app.text.choice_text import TextOptions
from app.text.tokenizer import Tokenizer
from engine.errors import InvalidRequest, PromptTooLong
from engine.types import IntColumn, SamplingParams, int32

# tokenising this many characters takes about as long as handing them to a thread is worth
_MAX_INLINE_LEN = 4096

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Token ids of one prompt, the most tokens to add, and its name in the request."""

    ids: IntColumn
    max_tokens: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one request asks the engine for: one sequence per prompt."""

    prompts: tuple[Prompt, ...]
    samplings: tuple[SamplingParams, ...]
    text: TextOptions


class JobMaker:
    """Tokenises requests and checks them against the model's limits."""

    def __init__(self, tokenizer: Tokenizer, settings: ApiSettings) -> None:
        self._tokenizer = tokenizer
        self._settings = settings

    async def completion(self, request: CompletionRequest) -> Job:
        """Prepare a request of /v1/completions.

        Raises:
            InvalidRequest: if a token id does not exist.
            PromptTooLong: if a prompt leaves no room for one token.
        """
        self._check_output_limit(request)
        named = request.named_prompts()
        for name, content in named:
            self._check_content(name, content)
        encoded = await _off_the_loop(
            sum(len(content) for _, content in named if isinstance(content, str)),
            lambda: [self._encode(content, request.add_special_tokens) for _, content in named],
        )
        prompts = [
            self._prompt(name, ids, request) for (name, _), ids in zip(named, encoded, strict=True)
        ]
        return self._job(request, prompts, starts_text=False)

    async def chat(self, request: ChatRequest) -> Job:
        """Prepare a request of /v1/chat/completions; see `completion`."""
        self._check_output_limit(request)
        messages = [message.for_template() for message in request.messages]
        num_characters = sum(len(message["content"]) for message in messages)
        self._check_length("messages", num_characters)
        ids = await _off_the_loop(
            num_characters,
            lambda: self._tokenizer.encode_chat(
                messages, add_generation_prompt=request.add_generation_prompt
            ),
        )
        return self._job(request, [self._prompt("messages", ids, request)], starts_text=True)

    def _encode(self, content: str | list[int], add_special_tokens: bool) -> IntColumn:
        if isinstance(content, str):
            return self._tokenizer.encode(content, add_special_tokens=add_special_tokens)
        return int32(content)

    def _check_content(self, name: str, content: str | list[int]) -> None:
        if isinstance(content, str):
            self._check_length(name, len(content))
        else:
            self._check_ids(name, content)

    def _check_output_limit(self, request: GenerationFields) -> None:
        limit, room = request.output_limit, self._settings.max_model_len
        if limit is not None and limit > room:
            raise PromptTooLong(
                f"the model's context is {room} tokens, but {limit} were asked for as output",
                param=request.output_limit_name,
                limit=room,
                got=limit,
            )

    def _check_length(self, name: str, num_characters: int) -> None:
        """Refuse what can never fit before it is tokenised."""
        least = self._tokenizer.min_tokens(num_characters)
        if least >= self._settings.max_model_len:
            raise self._too_long(name, least, "at least ")

    def _check_ids(self, name: str, ids: list[int]) -> None:
        if min(ids) >= 0 and max(ids) < self._settings.vocab_size:
            return
        at = next(i for i, token in enumerate(ids) if not 0 <= token < self._settings.vocab_size)
        raise InvalidRequest(
            f"{name}[{at}] is no token of the model, whose ids lie in "
            f"[0, {self._settings.vocab_size})",
            param=f"{name}[{at}]",
        )

    def _prompt(self, name: str, ids: IntColumn, request: GenerationFields) -> Prompt:
        if not ids:
            raise InvalidRequest(f"{name} has no tokens", param=name)
        room = self._settings.max_model_len - len(ids)
        if room < 1:
            raise self._too_long(name, len(ids), "")
        limit = room if request.output_limit is None else min(request.output_limit, room)
        return Prompt(ids=ids, max_tokens=limit, name=name)

    def _too_long(self, name: str, got: int, at_least: str) -> PromptTooLong:
        room = self._settings.max_model_len
        return PromptTooLong(
            f"the model's context is {room} tokens, but {name} has {at_least}{got} tokens, "
            "which leaves no room for output",
            param=name,
            limit=room,
            got=got,
        )

    def _job(self, request: GenerationFields, prompts: list[Prompt], *, starts_text: bool) -> Job:
        stop_token_ids = tuple(dict.fromkeys(request.stop_token_ids))
        if stop_token_ids:
            self._check_ids("stop_token_ids", list(request.stop_token_ids))
        return Job(
            prompts=tuple(prompts),
            samplings=tuple(
                SamplingParams(
                    max_tokens=prompt.max_tokens,
                    # negative zero means greedy too
                    temperature=abs(request.temperature),
                    top_k=max(request.top_k, 0),
                    top_p=request.top_p,
                    min_p=request.min_p,
                    seed=secrets.randbits(63) if request.seed is None else request.seed,
                    stop_token_ids=stop_token_ids,
                    ignore_eos=request.ignore_eos,
                    num_logprobs=request.num_logprobs,
                )
                for prompt in prompts
            ),
            text=TextOptions(
                stops=tuple(request.stop),
                stop_token_ids=frozenset(stop_token_ids),
                include_stop=request.include_stop_str_in_output,
                skip_special=request.skip_special_tokens,
                starts_text=starts_text,
                logprobs=request.num_logprobs is not None,
            ),
        )


async def _off_the_loop(num_characters: int, work: Callable[[], ResultT]) -> ResultT:
    if num_characters <= _MAX_INLINE_LEN:
        return work()
    return await asyncio.to_thread(work)
