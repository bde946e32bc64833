"""What systems are asked for, whatever they are."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One request: generate exactly so many tokens greedily, past end tokens.

    Attributes:
        schema: JSON schema that the text follows without white space, and cannot fulfil; "" for
            none.
    """

    prompt: list[int]
    output_len: int
    due_s: float = 0.0
    schema: str = ""
