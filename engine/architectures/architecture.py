"""What the engine has to know of a kind of model before it loads one."""

from collections.abc import Callable
from dataclasses import dataclass

from engine.architectures.fields import Json
from engine.config import ModelConfig

# names and shapes of the tensors of a checkpoint
Tensors = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One entry of `engine.architectures.registry`.

    Attributes:
        model_type: the name that config.json gives when it names no architecture.
        eos_token_id: end of a sequence when the files name none, as in transformers.
        parse: reads config.json, all but the ids that end a sequence; raises ConfigError.
        tensors: what a checkpoint must hold, by canonical names.
        canonical_name: the name of a stored tensor as `tensors` spells it; several spellings are
            published.
        is_redundant: whether a stored tensor, by its canonical name, repeats what is known.
    """

    model_type: str
    eos_token_id: int | None
    parse: Callable[[Json], ModelConfig]
    tensors: Callable[[ModelConfig], Tensors]
    canonical_name: Callable[[str], str]
    is_redundant: Callable[[ModelConfig, str], bool]
