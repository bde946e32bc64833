"""What an answer must match, in the words of a request."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["json", "regex", "choice", "grammar"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarSpec:
    """What an answer must match.

    Attributes:
        kind: how to read the content: a JSON schema as JSON, a regular expression in the syntax of
            Rust, a JSON list of texts of which one is to be chosen, or a grammar of Lark or of
            llama.cpp (GBNF).
        field: of the request that it comes from, for errors.
        whitespace: regular expression of what may stand between the tokens of JSON; "" for nothing.
        is_closed: whether objects may have no properties but those of their schema, also where it
            says nothing.
    """

    kind: Kind
    content: str
    field: str
    whitespace: str | None = None
    is_closed: bool = False
