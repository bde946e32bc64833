"""What a request wants of the text of its answer."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """How the tokens of a request become text, and what its answer repeats of the prompt.

    Attributes:
        stops: stop strings.
        stop_token_ids: ids that the client asked to stop at, beside the model's own.
        include_stop: keep the stop string, or the text of the stop token.
        skip_special: leave control tokens out of the text.
        starts_text: see `Detokenizer`.
        num_logprobs: alternatives per token of the text; None for no log-probabilities.
        echo: begin each choice with the prompt.
        num_prompt_logprobs: alternatives per token of the separate list `prompt_logprobs`; None
            for no such list.
    """

    stops: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop: bool = False
    skip_special: bool = True
    starts_text: bool = False
    num_logprobs: int | None = None
    echo: bool = False
    num_prompt_logprobs: int | None = None

    @property
    def num_scored(self) -> int | None:
        """Alternatives that the engine must report per prompt token; None if it reports none."""
        wanted = (self.num_logprobs if self.echo else None, self.num_prompt_logprobs)
        return max((count for count in wanted if count is not None), default=None)
