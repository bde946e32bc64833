"""What the ingress asks of the engine: a prompt, how to continue it, what to keep of it."""

from dataclasses import dataclass
from typing import Any, Literal

from engine.types.columns import IntColumn
from engine.types.progress import Progress
from engine.types.terms import ORDINARY_TERMS, Terms

# what an abort of the whole request has in the place of a choice
ALL_CHOICES = -2
# what llguidance may take for a grammar: most often 1 ms to compile it and 0.05 ms for a token, at
# most some 20 ms for either; what it says of errors must not repeat a client's words
GRAMMAR_LIMITS: dict[str, Any] = {
    "step_lexer_fuel": 100_000,
    "max_lexer_states": 50_000,
    "verbose_errors": False,
}
# how the hidden states of a prompt become one vector
Pooling = Literal["none", "last", "mean"]
# where a stop pattern leads when it is met
PATTERN_MET = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPattern:
    """What ends a hypothesis of a beam search beside stop ids: an automaton over tokens.

    Every sequence is in state 0, and in the states that its last token has led to. A token without
    an edge from any of them leads to none.

    Attributes:
        sources, tokens, targets: int32 edges; `PATTERN_MET` as a target ends the sequence.
        silent: int32 tokens that change no state.
        min_tokens: tokens of the output that count for nothing: what meets it begins after them.
    """

    sources: IntColumn
    tokens: IntColumn
    targets: IntColumn
    silent: IntColumn
    min_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token of one request is chosen and when it stops.

    Attributes:
        max_tokens: most tokens to generate, at least 1.
        temperature: divides the logits; 0 takes the most likely token, as does any below 1e-15.
        top_k: keep this many most likely tokens; 0 keeps all.
        top_p: keep the smallest set of tokens whose probability reaches this, in (0, 1].
        min_p: drop tokens below this share of the most likely token's probability, in [0, 1].
        seed: 64-bit; with the position it fixes every draw, whatever else is in the batch.
        stop_token_ids: ids that end the sequence beside the model's own end ids.
        ignore_eos: go on after the model's end ids (`stop_token_ids` still end it).
        n: sequences to return; they share the prompt.
        beam_width: beams to keep open, at least n; 0 samples instead of searching.
        length_penalty, early_stopping: beam search only, as in transformers' `generate`.
        stop_pattern: beam search only: what else ends a hypothesis, with the token that meets it.
        report_beams: beam search only: report the open beams after each step.
        min_tokens: tokens before which no stop id can be chosen.
        presence_penalty, frequency_penalty: subtracted from the logits of output tokens, once and
            per occurrence, in [-2, 2].
        repetition_penalty: divides positive and multiplies negative logits of prompt and output
            tokens, above 0; 1 changes nothing (arXiv:1909.05858).
        logit_bias: (token id, value added to its logit).
        allowed_token_ids: the only ids that can be chosen; empty allows all.
        bad_words: token sequences whose last token cannot follow the others.
        grammar: what the text of the output must match, as llguidance writes grammars; the sequence
            can end only where it is complete, and must end where nothing can follow. None allows
            every text.
        deterministic: the same bits by itself, in a batch, after a swap and after recomputation.
        prompt_logprobs: None for none, else log-probabilities of the prompt's tokens and of this
            many most likely tokens at each place, reported under `PROMPT_CHOICE`.
        num_logprobs: None for none, else log-probabilities of the chosen token and of this many
            most likely tokens, from the raw distribution (before temperature and filters).
        logprob_token_ids: distinct ids whose log-probabilities are reported in the place of those
            of the most likely tokens, in this order; `num_logprobs` is their number. Not for
            beams. Empty for none.
        counts_blocks: report the most blocks that the request has held.
        pooling: a vector is wanted instead of tokens: the hidden state of the prompt's last token,
            or the mean of all. Such a request has one sequence and `max_tokens` 1, and ends without
            a token once the prompt is computed.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n: int = 1
    beam_width: int = 0
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    stop_pattern: StopPattern | None = None
    report_beams: bool = False
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar: str | None = None
    deterministic: bool = False
    prompt_logprobs: int | None = None
    num_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] = ()
    counts_blocks: bool = False
    pooling: Pooling = "none"

    @property
    def changes_logits(self) -> bool:
        """Whether anything but temperature and filters bears on the choice."""
        return (
            self.presence_penalty != 0
            or self.frequency_penalty != 0
            or self.repetition_penalty != 1
            or self.min_tokens > 0
            or bool(self.logit_bias or self.allowed_token_ids or self.bad_words)
        )

    @property
    def needs_known_tokens(self) -> bool:
        """Whether the workers must know the tokens of its rows."""
        return self.changes_logits or self.prompt_logprobs is not None or self.grammar is not None

    @property
    def may_read_cache(self) -> bool:
        """Whether keys and values that another request has computed will do."""
        is_read = self.prompt_logprobs is not None or self.pooling == "mean"
        return not is_read and not self.deterministic


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A wish that the blocks of a prompt stay in the pool for later prompts that begin with it.

    Attributes:
        name: unique among the prefixes of a tenant.
        ttl_s: seconds from the end of its prefill; None for as long as the engine lives.
    """

    name: str
    ttl_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to continue, made by the ingress.

    Attributes:
        request_id: 63-bit, unique in the engine.
        prompt: int32 token ids, at least one.
        salt: the tenant; requests of other tenants never share blocks with this one.
        arrival_s: seconds on the clock that drives the engine.
        session: requests of one conversation have the same, random or hashed bytes; they prefer the
            same replica. The engine itself does not look at it.
        pin: keep the full blocks of the prompt. Such a request has one sequence of one token, which
            is not reported: it ends without output once the prompt is computed.
        progress: what an engine that is lost has generated for it; None for a new request.
        terms: on which it waits.
    """

    request_id: int
    prompt: IntColumn
    sampling: SamplingParams
    arrival_s: float = 0.0
    salt: bytes = b""
    session: bytes = b""
    pin: Pin | None = None
    progress: Progress | None = None
    terms: Terms = ORDINARY_TERMS
