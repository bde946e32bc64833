"""The decoder of all families: embedding, layers and logits, as a `ModelSpec` says.

A step makes the calls that its model needs and no other: of a plain LLaMA, one call for each
kernel of a layer.
"""

from dataclasses import dataclass

from torch import Tensor

from engine.architectures.weights import NORM_ROLES
from engine.config import ModelConfig
from engine.model.attention import Attention
from engine.model.feed_forward import FeedForward
from engine.model.mixtures.experts import MixedFeedForward
from engine.model.norms import Norm, add_sum, read_norm
from engine.model.parameters import Parameters
from engine.model.rope import RopeTable
from engine.model.vocab import TokenInput, TokenOutput
from kernels.backend import KernelBackend
from kernels.batch import BatchLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    """One rank's share of a layer, with the norms that it has."""

    attention: Attention
    feed: FeedForward | MixedFeedForward
    attention_norm: Norm | None
    attention_post_norm: Norm | None
    feed_norm: Norm | None
    feed_post_norm: Norm | None


class Decoder:
    """One rank's share; see `engine.model.model.Model`."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        backend: KernelBackend,
        *,
        num_positions: int,
    ) -> None:
        """Read all parameters.

        Args:
            num_positions: tokens of the longest sequence that will be run.

        Raises:
            ConfigError: if a parameter is missing or misshapen, a dimension cannot be split, or
                the model knows fewer positions.
        """
        spec = config.spec
        windows = [spec.window(index, num_positions) for index in range(config.num_layers)]
        self.windows = tuple(sorted(set(windows)))
        self._places = config.kv_groups.places
        self.num_kv_heads = config.kv_heads_per_rank(parameters.parallel.size)
        self._is_normed_last = spec.norms == "last"
        self._parallel = parameters.parallel
        self._backend = backend
        self._input = TokenInput(config, parameters, backend, num_positions)
        ropes = [
            RopeTable.of(rope, config.head_dim, num_positions, self._input.weight)
            for rope in spec.ropes
        ]
        self._layers = [
            _read_layer(config, parameters, backend, ropes, index, window)
            for index, window in enumerate(windows)
        ]
        # norms before layers, the last one behind them
        self._norms = [layer.attention_norm for layer in self._layers]
        if not self._is_normed_last:
            self._norms.append(read_norm(config, parameters, backend, "final_norm"))
        self._output = TokenOutput(config, parameters, backend, self._input.weight)

    def hidden(self, tokens: Tensor, kv: Tensor, layout: BatchLayout) -> Tensor:
        """Run one batch; see `engine.model.model.Model`."""
        x = self._input(tokens, layout)
        layers = self._norms_last if self._is_normed_last else self._run
        if self._parallel.size > 1:
            # what ranks send each other is no operation of a backend
            return layers(x, kv, layout)
        return self._backend.run_layers(layers, x, kv, layout)

    def logits(self, hidden: Tensor, *, is_deterministic: bool = False) -> Tensor:
        """Multiply by the rows of the vocabulary; see `engine.model.model.Model`."""
        return self._output(hidden, is_deterministic=is_deterministic)

    def _run(self, residual: Tensor, kv: Tensor, layout: BatchLayout) -> Tensor:
        first, layouts = self._norms[0], layout.by_group
        x = residual if first is None else first(residual)
        for index, layer in enumerate(self._layers):
            group, place = self._places[index]
            if layout.before_layer is not None:
                layout.before_layer(place)
            x = layer.attention(x, kv[:, place], layouts[group])
            x = self._pass_on(x, residual, layer.attention_post_norm, layer.feed_norm, layout)
            x = layer.feed(x, layout)
            x = self._pass_on(x, residual, layer.feed_post_norm, self._norms[index + 1], layout)
        return x

    def _norms_last(self, x: Tensor, kv: Tensor, layout: BatchLayout) -> Tensor:
        """What a norm returns is the residual stream of what follows."""
        for layer, (group, place) in zip(self._layers, self._places, strict=True):
            attention_norm, feed_norm = layer.attention_post_norm, layer.feed_post_norm
            assert attention_norm is not None
            assert feed_norm is not None
            if layout.before_layer is not None:
                layout.before_layer(place)
            attended = layer.attention(x, kv[:, place], layout.by_group[group])
            x = self._pass_on(attended, x, None, attention_norm, layout)
            x = self._pass_on(layer.feed(x, layout), x, None, feed_norm, layout)
        return x

    def _pass_on(
        self,
        x: Tensor,
        residual: Tensor,
        after: Norm | None,
        before: Norm | None,
        layout: BatchLayout,
    ) -> Tensor:
        """Add the ranks' parts x to the stream IN PLACE, their sum normed or not.

        Returns:
            What the next part of a layer gets.
        """
        fixed = layout.is_deterministic
        if after is None and before is not None:
            return add_sum(before, x, residual, self._parallel, is_deterministic=fixed)
        x = self._parallel.all_reduce(x, is_deterministic=fixed)
        if after is not None:
            x = after(x)
        return residual.add_(x) if before is None else before.add(x, residual)


def _read_layer(
    config: ModelConfig,
    parameters: Parameters,
    backend: KernelBackend,
    ropes: list[RopeTable],
    index: int,
    window: int,
) -> DecoderLayer:
    roles = NORM_ROLES[config.spec.norms]

    def norm(role: str) -> Norm | None:
        return read_norm(config, parameters, backend, role, index) if role in roles else None

    spec = config.spec.layer(index)
    rope, feed = spec.rope, MixedFeedForward if spec.mlp == "experts" else FeedForward
    return DecoderLayer(
        attention=Attention(
            config, parameters, backend, None if rope is None else ropes[rope], index, window
        ),
        feed=feed(config, parameters, backend, index),
        attention_norm=norm("attention_norm"),
        attention_post_norm=norm("attention_post_norm"),
        feed_norm=norm("feed_norm"),
        feed_post_norm=norm("feed_post_norm"),
    )
