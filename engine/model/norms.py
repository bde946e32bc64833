"""Norms over the hidden dimension, with the residual stream between layers."""

from typing import Protocol

from torch import Tensor

from engine.config import ModelConfig
from engine.model.parallel import TensorParallel
from engine.model.parameters import Parameters
from kernels.backend import KernelBackend
from kernels.row_sums import NormWeights


class Norm(Protocol):
    """A norm with its parameters."""

    @property
    def weights(self) -> NormWeights:
        """The parameters."""
        ...

    def __call__(self, x: Tensor) -> Tensor:
        """Norm of x [T, hidden]."""
        ...

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Add x to `residual` IN PLACE, both [T, hidden], and return the norm of the sum."""
        ...


class RmsNorm:
    """By the root of the mean square (arXiv:1910.07467)."""

    def __init__(self, weight: Tensor, eps: float, backend: KernelBackend) -> None:
        self.weights = NormWeights(weight, None, eps)
        self._weight, self._eps, self._backend = weight, eps, backend

    def __call__(self, x: Tensor) -> Tensor:
        """See `Norm`."""
        return self._backend.rms_norm(x, self._weight, self._eps)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """See `Norm`."""
        return self._backend.add_rms_norm(x, residual, self._weight, self._eps)


class LayerNorm:
    """By mean and variance (arXiv:1607.06450)."""

    def __init__(self, weight: Tensor, bias: Tensor, eps: float, backend: KernelBackend) -> None:
        self.weights = NormWeights(weight, bias, eps)
        self._weight, self._bias, self._eps, self._backend = weight, bias, eps, backend

    def __call__(self, x: Tensor) -> Tensor:
        """See `Norm`."""
        return self._backend.layer_norm(x, self._weight, self._bias, self._eps)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """See `Norm`."""
        return self._backend.add_layer_norm(x, residual, self._weight, self._bias, self._eps)


def add_sum(
    norm: Norm, x: Tensor, residual: Tensor, parallel: TensorParallel, *, is_deterministic: bool
) -> Tensor:
    """Add the sum of x over all ranks to `residual` IN PLACE and return the norm of that.

    Args:
        x: [T, hidden], overwritten.
        is_deterministic: see `TensorParallel.all_reduce`.
    """
    row_sums = parallel.row_sums_of(x, is_deterministic=is_deterministic)
    if row_sums is not None:
        return row_sums.sum_rows(x, residual, norm.weights)
    return norm.add(parallel.all_reduce(x, is_deterministic=is_deterministic), residual)


# a residual multiplier m is not applied to what layers add: the stream is kept divided by m, which
# these norms undo by their eps
_OF_THE_STREAM = ("attention_norm", "feed_norm", "final_norm")


def read_norm(
    config: ModelConfig,
    parameters: Parameters,
    backend: KernelBackend,
    role: str,
    layer: int | None = None,
) -> Norm:
    """Read the norm of a role; the last one takes the multiplier of the logits in."""
    spec, eps = config.spec, config.norm_eps
    weight = parameters.whole(role, layer=layer)
    if role in _OF_THE_STREAM:
        eps /= spec.residual_multiplier**2
    factor = spec.logit_multiplier if role == "final_norm" else 1.0
    if spec.norm == "layer":
        assert factor == 1.0, "no family has layer norms and a multiplier of logits"
        return LayerNorm(weight, parameters.whole(role, "bias", layer), eps, backend)
    return RmsNorm(gains(weight, spec.norm_gain, factor), eps, backend)


def gains(weight: Tensor, added: float, factor: float = 1.0) -> Tensor:
    """What a norm multiplies by: (weight + added) * factor.

    Args:
        weight: [width] as it is stored; returned as it is where nothing changes it.

    Returns:
        [width], float32 where it was changed.
    """
    return weight if added == 0.0 and factor == 1.0 else (weight.float() + added) * factor
