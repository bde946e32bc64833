"""Log-probabilities in the shapes of the API: of completions, of chats and of prompts."""

from collections.abc import Sequence
from typing import Any

from app.text.choice_text import TokenLogprob
from app.text.vocabulary import Vocabulary

# stands for minus infinity, which JSON does not have
_LOWEST = -9999.0


class LogprobWriter:
    """Writes the log-probabilities of one request.

    Args:
        as_ids: write a token as "token_id:7" instead of its text.
    """

    def __init__(self, vocabulary: Vocabulary, *, as_ids: bool) -> None:
        self._vocabulary = vocabulary
        self._as_ids = as_ids

    def completion(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Return the shape of /v1/completions: four lists of equal length."""
        return {
            "tokens": [self._name(t.token) if self._as_ids else t.text for t in tokens],
            "token_logprobs": [None if t.logprob is None else _finite(t.logprob) for t in tokens],
            "top_logprobs": [self._top_by_name(t) for t in tokens],
            "text_offset": [t.offset for t in tokens],
        }

    def chat(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Return the shape of /v1/chat/completions: one object per token."""
        return {
            "content": [
                {
                    **self._describe(token.token, token.logprob),
                    "top_logprobs": [self._describe(*alternative) for alternative in token.top],
                }
                for token in tokens
                if token.logprob is not None
            ]
        }

    def prompt(self, tokens: Sequence[TokenLogprob]) -> list[dict[str, Any] | None]:
        """Return the shape of `prompt_logprobs`: one object per token, keyed by ids."""
        return [self._by_id(token) for token in tokens]

    def _by_id(self, scored: TokenLogprob) -> dict[str, Any] | None:
        """The prompt's own token comes first; its rank is not known beyond the alternatives."""
        if scored.logprob is None:
            return None
        ranks = {token: rank for rank, (token, _) in enumerate(scored.top, start=1)}
        logprobs = {scored.token: scored.logprob, **dict(scored.top)}
        return {
            str(token): {
                "logprob": _finite(logprob),
                "rank": ranks.get(token),
                "decoded_token": self._name(token),
            }
            for token, logprob in logprobs.items()
        }

    def _top_by_name(self, scored: TokenLogprob) -> dict[str, float] | None:
        """The sampled token comes first; of tokens spelled alike the likeliest is shown."""
        if scored.logprob is None:
            return None
        by_name = {self._name(scored.token): _finite(scored.logprob)}
        for token, logprob in scored.top:
            by_name.setdefault(self._name(token), _finite(logprob))
        return by_name

    def _describe(self, token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self._name(token),
            "logprob": _finite(logprob),
            "bytes": list(self._vocabulary.piece(token)),
        }

    def _name(self, token: int) -> str:
        if self._as_ids:
            return f"token_id:{token}"
        piece = self._vocabulary.piece(token)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _finite(logprob: float) -> float:
    # NaN compares false, so that it becomes the lowest value, too
    return logprob if logprob > _LOWEST else _LOWEST
