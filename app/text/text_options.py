"""What a request wants of the text of its answer."""

from dataclasses import dataclass

from app.text.reply.repetition import RepetitionLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """How the tokens of a request become text, and what its answer repeats of the prompt.

    Attributes:
        stops: stop strings.
        min_tokens: tokens before which no stop string may begin.
        stop_token_ids: ids that the client asked to stop at, beside the model's own.
        include_stop: keep the stop string, or the text of the stop token.
        skip_special: leave control tokens out of the text.
        kept_special: ids of those that stay in it all the same.
        starts_text: see `Detokenizer`.
        num_logprobs: alternatives per token of the text; None for no log-probabilities.
        echo: begin each choice with the prompt.
        num_prompt_logprobs: alternatives per token of the separate list `prompt_logprobs`; None
            for no such list.
        repetition: what ends a choice for saying the same again; None for nothing.
        late_rule: the field at fault where the rules leave no token half-way.
    """

    stops: tuple[str, ...] = ()
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    include_stop: bool = False
    skip_special: bool = True
    kept_special: frozenset[int] = frozenset()
    starts_text: bool = False
    num_logprobs: int | None = None
    echo: bool = False
    num_prompt_logprobs: int | None = None
    late_rule: str | None = None
    repetition: RepetitionLimit | None = None

    @property
    def repeats_prompt(self) -> bool:
        """Whether the answer says anything of the prompt's tokens."""
        return self.echo or self.num_prompt_logprobs is not None

    @property
    def num_scored(self) -> int | None:
        """Alternatives that the engine must report per prompt token; None if it reports none."""
        wanted = (self.num_logprobs if self.echo else None, self.num_prompt_logprobs)
        return max((count for count in wanted if count is not None), default=None)
