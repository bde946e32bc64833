"""The two ends of a language model, split over the ranks by rows of the vocabulary."""

from torch import Tensor

from engine.config import ModelConfig
from engine.model.parameters import Parameters
from kernels.backend import KernelBackend


class VocabEmbedding:
    """Looks up tokens; each rank holds its share of the rows of the vocabulary.

    Attributes:
        weight: [vocab_size / ranks, embedding_width], rounded up.
    """

    def __init__(
        self, config: ModelConfig, parameters: Parameters, backend: KernelBackend, name: str
    ) -> None:
        """Args: name: of the parameter."""
        self._backend = backend
        self._parallel = parameters.parallel
        self.weight = parameters.vocab_rows(name, config.vocab_size, config.embedding_width)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Tokens [T] int64 -> [T, embedding_width], the same on every rank."""
        if self._parallel.size == 1:
            return self._backend.embed(tokens, self.weight)
        local = tokens - self._parallel.rank * self.weight.shape[0]
        elsewhere = (local < 0) | (local >= self.weight.shape[0])
        x = self._backend.embed(local.masked_fill(elsewhere, 0), self.weight)
        return self._parallel.all_reduce(x.masked_fill(elsewhere[:, None], 0.0))


class VocabHead:
    """Turns hidden states into logits over all token ids that can be chosen."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        backend: KernelBackend,
        tied: Tensor | None,
    ) -> None:
        """Args: tied: the embedding's weight, for models that share it."""
        self._parallel = parameters.parallel
        self._num_choices = config.num_choices
        weight = tied
        if weight is None:
            weight = parameters.vocab_rows(
                "lm_head.weight", config.vocab_size, config.embedding_width
            )
        if parameters.parallel.size == 1:
            weight = weight[: self._num_choices]
        self._linear = backend.make_head(weight)

    def __call__(self, x: Tensor, *, is_deterministic: bool = False) -> Tensor:
        """Hidden states [S, embedding_width] -> [S, num_choices], the same on every rank."""
        logits = self._linear(x, is_deterministic=is_deterministic)
        return self._parallel.all_gather(logits)[:, : self._num_choices].contiguous()
