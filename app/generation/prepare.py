"""From a checked request to what the engine needs: token ids, sampling parameters, text options."""

from dataclasses import dataclass, replace

from app.generation.prompt_encoder import PromptEncoder
from app.generation.sampling import BadWords, is_ranked, sampling_params, scoring_params
from app.protocol.chat_request import ChatRequest
from app.protocol.completion_request import CompletionRequest
from app.protocol.fields import GenerationFields
from app.text.choice_text import TextOptions
from app.text.prompt_text import PromptOptions
from engine.errors import PromptTooLong
from engine.types import IntColumn, SamplingParams, StopPattern


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt to continue or to score.

    Attributes:
        name: of the prompt in the request, for errors.
        ids: int32 token ids.
        text: as the client wrote it; None where it gave ids, and for conversations.
        sampling: None where nothing is asked of the engine.
    """

    name: str
    ids: IntColumn
    text: str | None = None
    sampling: SamplingParams | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one request asks the engine for.

    Attributes:
        num_choices: sequences to return for each prompt.
        num_candidates: sequences to make for each prompt; the best of them are returned.
        is_scoring: no token is to be generated: the engine gets each prompt without its last token
            and is made to say that one.
        is_search: the engine tells nothing before the end.
    """

    prompts: tuple[Prompt, ...]
    text: TextOptions
    prompt_text: PromptOptions
    num_choices: int = 1
    num_candidates: int = 1
    is_scoring: bool = False
    is_search: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What all prompts of a request share."""

    request: GenerationFields
    bad_words: BadWords
    prompt_text: PromptOptions
    starts_text: bool
    stop_pattern: StopPattern | None

    @property
    def is_scoring(self) -> bool:
        return self.request.output_limit == 0

    def sampling(self, ids: IntColumn, max_tokens: int) -> SamplingParams | None:
        request, num_scored = self.request, self.prompt_text.num_scored
        if max_tokens > 0:
            sampling = sampling_params(request, max_tokens, self.bad_words)
            return replace(sampling, prompt_logprobs=num_scored, stop_pattern=self.stop_pattern)
        if num_scored is None or len(ids) == 1:
            return None
        return scoring_params(ids[-1], num_scored, deterministic=request.deterministic)

    def job(self, *prompts: Prompt) -> Job:
        request = self.request
        return Job(
            prompts=prompts,
            text=_text_options(request, starts_text=self.starts_text),
            prompt_text=self.prompt_text,
            num_choices=request.n,
            num_candidates=request.num_candidates if is_ranked(request) else request.n,
            is_scoring=self.is_scoring,
            is_search=request.use_beam_search,
        )


class JobMaker:
    """Prepares the requests of both generating routes."""

    def __init__(self, encoder: PromptEncoder, max_model_len: int) -> None:
        self._encoder = encoder
        self._max_model_len = max_model_len

    async def completion(self, request: CompletionRequest) -> Job:
        """Prepare a request of /v1/completions.

        Raises:
            InvalidRequest: if a token id does not exist or a prompt has no tokens.
            PromptTooLong: if a prompt leaves no room for the first token to generate.
        """
        wanted = PromptOptions(
            echo=request.echo,
            num_echo_logprobs=request.logprobs,
            num_logprobs=request.prompt_logprobs,
        )
        plan = await self._plan(request, wanted, starts_text=False)
        named = request.named_prompts()
        encoded = await self._encoder.encode(
            named,
            add_special_tokens=request.add_special_tokens,
            min_output=0 if plan.is_scoring else 1,
        )
        prompts = [
            self._prompt(plan, name, ids, content if isinstance(content, str) else None)
            for (name, content), ids in zip(named, encoded, strict=True)
        ]
        return plan.job(*prompts)

    async def chat(self, request: ChatRequest) -> Job:
        """Prepare a request of /v1/chat/completions; see `completion`."""
        wanted = PromptOptions(num_logprobs=request.prompt_logprobs)
        plan = await self._plan(request, wanted, starts_text=True)
        ids = await self._encoder.encode_chat(
            request.messages, add_generation_prompt=request.add_generation_prompt
        )
        return plan.job(self._prompt(plan, "messages", ids, None))

    async def _plan(
        self, request: GenerationFields, prompt_text: PromptOptions, *, starts_text: bool
    ) -> _Plan:
        self._encoder.check_ids("stop_token_ids", request.stop_token_ids)
        self._encoder.check_ids("allowed_token_ids", request.allowed_token_ids or [])
        self._encoder.check_keys("logit_bias", request.logit_bias)
        limit = request.output_limit
        if limit is not None and limit > self._max_model_len:
            raise PromptTooLong(
                f"the model's context is {self._max_model_len} tokens, but {limit} were asked for "
                "as output",
                param=request.output_limit_name,
                limit=self._max_model_len,
                got=limit,
            )
        return _Plan(
            request=request,
            bad_words=await self._encoder.encode_bad_words(request.bad_words),
            prompt_text=prompt_text,
            starts_text=starts_text,
            stop_pattern=self._encoder.stop_pattern(
                request.stop, skip_special=request.skip_special_tokens
            )
            if request.use_beam_search and request.stop
            else None,
        )

    def _prompt(self, plan: _Plan, name: str, ids: IntColumn, text: str | None) -> Prompt:
        room = self._encoder.room(name, ids, min_output=0 if plan.is_scoring else 1)
        limit = plan.request.output_limit
        max_tokens = room if limit is None else min(limit, room)
        return Prompt(name=name, ids=ids, text=text, sampling=plan.sampling(ids, max_tokens))


def _text_options(request: GenerationFields, *, starts_text: bool) -> TextOptions:
    return TextOptions(
        stops=tuple(request.stop),
        stop_token_ids=frozenset(request.stop_token_ids),
        include_stop=request.include_stop_str_in_output,
        skip_special=request.skip_special_tokens,
        starts_text=starts_text,
        logprobs=request.num_logprobs is not None,
    )
