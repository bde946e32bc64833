"""The feed-forward network of a layer: two matrices, or three of which one gates."""

from collections.abc import Callable

from torch import Tensor

from engine.config import ModelConfig
from engine.model.parameters import Parameters
from kernels.backend import KernelBackend
from kernels.batch import BatchLayout


class FeedForward:
    """One rank's share of a layer's network."""

    def __init__(
        self, config: ModelConfig, parameters: Parameters, backend: KernelBackend, layer: int
    ) -> None:
        spec = config.spec
        is_gated = spec.layer(layer).mlp == "gated"
        roles = ("gate", "up") if is_gated else ("up",)
        weight = parameters.rows(roles, "weight", layer)
        bias = parameters.rows(roles, "bias", layer) if spec.feed_bias else None
        self._activate: Callable[[Tensor], Tensor] | None = None
        if is_gated:
            self._first = backend.make_gated_linear(weight, bias, spec.activation)
        else:
            self._first = backend.make_linear(weight, bias)
            self._activate = {"relu": backend.relu, "gelu": backend.gelu}[spec.activation]
        summed = parameters.summed_bias("down", layer) if spec.feed_bias else None
        self._second = backend.make_linear(parameters.columns("down", layer), summed)

    def __call__(self, x: Tensor, layout: BatchLayout) -> Tensor:
        """Normed x [T, hidden] -> this rank's part of what to add to the residual stream."""
        fixed = layout.is_deterministic
        x = self._first(x, is_deterministic=fixed)
        if self._activate is not None:
            x = self._activate(x)
        return self._second(x, is_deterministic=fixed)
