"""What systems are asked for, whatever they are."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One request: generate exactly so many tokens greedily, past end tokens."""

    prompt: list[int]
    output_len: int
    due_s: float = 0.0
