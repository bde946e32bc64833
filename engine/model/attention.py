"""Attention of one rank: projections, rotation, the KV cache and PagedAttention between them."""

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.model.norms import gains
from engine.model.parameters import Parameters, in_order
from engine.model.rope import RopeTable
from kernels.backend import KernelBackend, Linear
from kernels.batch import BatchLayout

_QKV = ("q", "k", "v")


class Attention:
    """The attention of one layer; what its model does not have costs no call."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        backend: KernelBackend,
        rope: RopeTable | None,
        layer: int,
        window: int,
    ) -> None:
        """Read the weights of a layer.

        Args:
            rope: None to turn nothing.
            window: see `KernelBackend.attention`.
        """
        self._backend = backend
        self._parallel = parameters.parallel
        self._eps = config.norm_eps
        self._scale = config.spec.attention_scale or config.head_dim**-0.5
        self._softcap = config.spec.attention_softcap
        self._window = window
        self._sinks: Tensor | None = None
        if config.spec.has_sinks:
            self._sinks = parameters.rows(("sinks",), "", layer).float()
        self._cos_sin = rope.cos_sin if rope else None
        self._query_factors = rope.query_factors if rope else None
        order = rope.order if rope else None
        self._qkv = _read_qkv(config, parameters, backend, order, layer)
        self._gains = _read_gains(config, parameters, order, layer)
        self._norms_all = config.spec.qk_norm == "all"
        bias = parameters.summed_bias("output", layer) if config.spec.output_bias else None
        self._output = backend.make_linear(parameters.columns("output", layer), bias)

    def __call__(self, x: Tensor, kv_layer: Tensor, layout: BatchLayout) -> Tensor:
        """Normed x [T, hidden] -> this rank's part of what to add to the residual stream."""
        fixed = layout.is_deterministic
        q = self._write(self._qkv(x, is_deterministic=fixed), kv_layer, layout)
        if self._query_factors is not None:
            q *= self._backend.embed(layout.positions, self._query_factors)[:, :, None]
        attended = self._backend.attention(
            q,
            kv_layer,
            layout,
            self._scale,
            softcap=self._softcap,
            window=self._window,
            sinks=self._sinks,
        )
        return self._output(attended, is_deterministic=fixed)

    def _write(self, qkv: Tensor, kv_layer: Tensor, layout: BatchLayout) -> Tensor:
        """Put keys and values into the cache; return queries [T, heads, head_dim]."""
        if self._gains is not None:
            means = self._means(qkv, kv_layer, layout) if self._norms_all else None
            return self._backend.norm_rope_write(
                qkv, self._gains, self._eps, self._cos_sin, kv_layer, layout, means
            )
        if self._cos_sin is None:
            return self._backend.kv_write(qkv, kv_layer, layout)
        return self._backend.rope_write(qkv, self._cos_sin, kv_layer, layout)

    def _means(self, qkv: Tensor, kv_layer: Tensor, layout: BatchLayout) -> Tensor:
        """Mean squares of queries and of keys over the heads of all ranks -> [T, 2] float32."""
        kv_width = kv_layer.shape[2] * kv_layer.shape[4]
        means = self._backend.mean_squares(qkv, qkv.shape[1] - 2 * kv_width, kv_width)
        if self._parallel.size > 1:
            means = self._parallel.all_reduce(means, is_deterministic=layout.is_deterministic)
            means /= self._parallel.size
        return means


def _read_qkv(
    config: ModelConfig,
    parameters: Parameters,
    backend: KernelBackend,
    order: list[int] | None,
    layer: int,
) -> Linear:
    parameters.parallel.share(config.num_heads, "attention heads")
    kv_heads = dict.fromkeys(("k", "v"), config.num_kv_heads)
    orders = {"q": order, "k": order} if order else {}

    def read(suffix: str) -> Tensor:
        return parameters.rows(_QKV, suffix, layer, kv_heads=kv_heads, orders=orders)

    return backend.make_linear(read("weight"), read("bias") if config.spec.qkv_bias else None)


def _read_gains(
    config: ModelConfig, parameters: Parameters, order: list[int] | None, layer: int
) -> Tensor | None:
    """Gains of the norms of this rank's query and key heads -> [heads, head_dim]; None for none."""
    spec = config.spec
    if spec.qk_norm == "none":
        return None
    parts = []
    for role, count in (("q_norm", config.num_heads), ("k_norm", config.num_kv_heads)):
        weight = parameters.whole(role, layer=layer)
        if order:
            weight = in_order(weight, order)
        heads = parameters.parallel.span(count, f"heads of {role}", num_heads=count)
        weight = weight.view(-1, config.head_dim)
        if spec.qk_norm == "head":
            weight = weight.expand(count, -1)
        parts.append(weight[heads.start : heads.stop])
    return gains(torch.cat(parts), spec.norm_gain)
