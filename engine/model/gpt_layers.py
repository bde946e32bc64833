"""Layers of the models before LLaMA: an embedding of positions, biases everywhere, LayerNorm.

OPT and GPT-2 differ in the names and the layout of their stored parameters and in the activation:
each reads its parameters itself, and both are run by what is here.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from engine.config import ModelConfig
from engine.errors import ConfigError
from engine.model.parallel import TensorParallel
from engine.model.parameters import Parameters
from kernels.backend import KernelBackend, Linear
from kernels.batch import BatchLayout


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """Gain and shift, both [hidden_size]."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def read(cls, parameters: Parameters, name: str, hidden_size: int) -> "LayerNorm":
        """Read the two parameters of the norm called `name`."""
        weight, bias = (parameters.whole(f"{name}.{part}", hidden_size) for part in cls.__slots__)
        return cls(weight, bias)


class PositionEmbedding:
    """The embedding of positions that is added to that of tokens."""

    def __init__(self, table: Tensor, backend: KernelBackend, num_positions: int) -> None:
        """Keep what is needed.

        Args:
            table: [positions of the model, hidden_size].
            num_positions: tokens of the longest sequence that will be run.

        Raises:
            ConfigError: if the table is shorter.
        """
        if num_positions > len(table):
            raise ConfigError(
                f"max_model_len {num_positions} is above the {len(table)} positions of the model; "
                f"lower it to {len(table)}"
            )
        self._backend = backend
        self._table = table[:num_positions].contiguous()

    def __call__(self, x: Tensor, layout: BatchLayout) -> Tensor:
        """Add to x [T, hidden_size] IN PLACE and return it."""
        return x.add_(self._backend.embed(layout.positions, self._table))


@dataclass(frozen=True, slots=True, kw_only=True)
class GptLayer:
    """One rank's attention and feed-forward network.

    Attributes:
        attention_norm, feed_norm: before each of the two, or after it (`ModelConfig.norm_first`).
        qkv, feed_in: hold this rank's outputs.
        out, feed_out: hold this rank's inputs; their results are summed over the ranks.
    """

    attention_norm: LayerNorm
    qkv: Linear
    out: Linear
    feed_norm: LayerNorm
    feed_in: Linear
    feed_out: Linear


class GptLayers:
    """All layers in order; with norms first, the norm after the last layer too."""

    def __init__(
        self,
        config: ModelConfig,
        layers: list[GptLayer],
        final_norm: LayerNorm | None,
        parallel: TensorParallel,
        backend: KernelBackend,
        activation: Callable[[Tensor], Tensor],
    ) -> None:
        self._layers = layers
        self._final_norm = final_norm
        self._parallel = parallel
        self._backend = backend
        self._activation = activation
        self._scale = config.head_dim**-0.5
        self._eps = config.norm_eps

    def __call__(self, x: Tensor, kv: Tensor, layout: BatchLayout) -> Tensor:
        """Hidden states [T, hidden_size], OVERWRITTEN -> those after the last layer or norm."""
        if self._final_norm is None:
            return self._norms_last(x, kv, layout)
        return self._norms_first(x, self._final_norm, kv, layout)

    def _norms_first(
        self, residual: Tensor, final_norm: LayerNorm, kv: Tensor, layout: BatchLayout
    ) -> Tensor:
        norms = [*(layer.attention_norm for layer in self._layers[1:]), final_norm]
        first = self._layers[0].attention_norm
        x = self._backend.layer_norm(residual, first.weight, first.bias, self._eps)
        for index, (layer, norm) in enumerate(zip(self._layers, norms, strict=True)):
            x = self._attend(layer, x, kv[:, index], layout)
            x = self._add_norm(x, residual, layer.feed_norm)
            x = self._feed(layer, x, layout)
            x = self._add_norm(x, residual, norm)
        return x

    def _norms_last(self, x: Tensor, kv: Tensor, layout: BatchLayout) -> Tensor:
        for index, layer in enumerate(self._layers):
            x = self._add_norm(
                self._attend(layer, x, kv[:, index], layout), x, layer.attention_norm
            )
            x = self._add_norm(self._feed(layer, x, layout), x, layer.feed_norm)
        return x

    def _attend(self, layer: GptLayer, x: Tensor, kv_layer: Tensor, layout: BatchLayout) -> Tensor:
        fixed = layout.is_deterministic
        q = self._backend.kv_write(layer.qkv(x, is_deterministic=fixed), kv_layer, layout)
        attended = self._backend.attention(q, kv_layer, layout, self._scale)
        x = layer.out(attended, is_deterministic=fixed)
        return self._parallel.all_reduce(x, is_deterministic=fixed)

    def _feed(self, layer: GptLayer, x: Tensor, layout: BatchLayout) -> Tensor:
        fixed = layout.is_deterministic
        x = self._activation(layer.feed_in(x, is_deterministic=fixed))
        x = layer.feed_out(x, is_deterministic=fixed)
        return self._parallel.all_reduce(x, is_deterministic=fixed)

    def _add_norm(self, x: Tensor, residual: Tensor, norm: LayerNorm) -> Tensor:
        return self._backend.add_layer_norm(x, residual, norm.weight, norm.bias, self._eps)
