"""What a request wants of a chat template, beside its messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateOptions:
    """How a conversation is rendered.

    Attributes:
        add_generation_prompt: end with the head of the answer.
        continues_last: leave the last message open, so that the model goes on with it.
        add_special_tokens: put what the tokenizer puts in front of plain texts there, too.
        tools: described to the model, each as OpenAI's API has it.
        variables: further ones that the template may know.
    """

    add_generation_prompt: bool = True
    continues_last: bool = False
    add_special_tokens: bool = False
    tools: Sequence[Mapping[str, Any]] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
