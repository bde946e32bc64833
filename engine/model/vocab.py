"""The two ends of a language model, split over the ranks by rows of the vocabulary."""

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.errors import ConfigError
from engine.model.parameters import Parameters
from kernels.backend import KernelBackend, Linear
from kernels.batch import BatchLayout


class TokenInput:
    """Looks up tokens, and what a model does to them before its layers.

    Attributes:
        weight: [vocab_size / ranks, embedding_width], rounded up; each rank holds its share of the
            rows of the vocabulary.
    """

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        backend: KernelBackend,
        num_positions: int,
    ) -> None:
        """Args: num_positions: tokens of the longest sequence that will be run."""
        self._backend = backend
        self._parallel = parameters.parallel
        self.weight = parameters.vocab_rows("embedding")
        self._multiplier = _multiplier(config, self.weight.dtype)
        self._project = _projection(config, parameters, backend, "project_in")
        self._positions = _read_positions(config, parameters, num_positions)

    def __call__(self, tokens: Tensor, layout: BatchLayout) -> Tensor:
        """Tokens [T] int64 -> [T, hidden_size], the same on every rank."""
        x = self._look_up(tokens)
        if self._multiplier != 1.0:
            x.mul_(self._multiplier)
        if self._project is not None:
            x = self._project(x, is_deterministic=layout.is_deterministic)
        if self._positions is not None:
            x.add_(self._backend.embed(layout.positions, self._positions))
        return x

    def _look_up(self, tokens: Tensor) -> Tensor:
        if self._parallel.size == 1:
            return self._backend.embed(tokens, self.weight)
        local = tokens - self._parallel.rank * self.weight.shape[0]
        elsewhere = (local < 0) | (local >= self.weight.shape[0])
        x = self._backend.embed(local.masked_fill(elsewhere, 0), self.weight)
        return self._parallel.all_reduce(x.masked_fill(elsewhere[:, None], 0.0))


class TokenOutput:
    """Turns hidden states into logits over all token ids that can be chosen."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        backend: KernelBackend,
        embedding: Tensor,
    ) -> None:
        """Args: embedding: the weight of the other end, which some models share."""
        self._backend = backend
        self._parallel = parameters.parallel
        self._num_choices = config.num_choices
        self._softcap = config.spec.logit_softcap
        self._project = _projection(config, parameters, backend, "project_out")
        weight = embedding if config.tie_embeddings else parameters.vocab_rows("head")
        if parameters.parallel.size == 1:
            weight = weight[: self._num_choices]
        self._head = backend.make_head(weight)

    def __call__(self, x: Tensor, *, is_deterministic: bool = False) -> Tensor:
        """Hidden states [S, hidden_size] -> [S, num_choices], the same on every rank."""
        if self._project is not None:
            x = self._project(x, is_deterministic=is_deterministic)
        logits = self._head(x, is_deterministic=is_deterministic)
        logits = self._parallel.all_gather(logits)[:, : self._num_choices].contiguous()
        return self._backend.softcap(logits, self._softcap) if self._softcap else logits


def _multiplier(config: ModelConfig, dtype: torch.dtype) -> float:
    """The factor of embeddings; the residual stream is divided by its own, see `norms`."""
    spec = config.spec
    factor = spec.embedding_multiplier
    if spec.rounds_multiplier:
        factor = float(torch.tensor(factor, dtype=dtype))
    return factor / spec.residual_multiplier


def _projection(
    config: ModelConfig, parameters: Parameters, backend: KernelBackend, role: str
) -> Linear | None:
    """Between the widths of embedding and layers, if they differ; small, so whole on every rank."""
    if config.embedding_width == config.hidden_size:
        return None
    return backend.make_linear(parameters.whole(role), None)


def _read_positions(
    config: ModelConfig, parameters: Parameters, num_positions: int
) -> Tensor | None:
    """The table of added positions [num_positions, hidden_size]; None for models without."""
    num_before = config.spec.position_rows
    if num_before is None:
        return None
    if num_positions > config.max_position:
        raise ConfigError(
            f"max_model_len {num_positions} is above the {config.max_position} positions of the "
            f"model; lower it to {config.max_position}"
        )
    table = parameters.whole("positions")
    return table[num_before : num_before + num_positions].contiguous()
