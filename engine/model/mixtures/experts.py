"""A mixture of experts as the feed-forward network of a layer (`ExpertsSpec`)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.architectures.weights import (
    CHOICE_BIAS,
    EXPERT_ROLES,
    PACKED_SUFFIXES,
    STACK_ROLES,
)
from engine.config import ExpertsSpec, ModelConfig
from engine.model.mixtures.mxfp4 import unpack_mxfp4
from engine.model.parallel import TensorParallel
from engine.model.parameters import Parameters
from kernels.backend import KernelBackend, Linear
from kernels.batch import BatchLayout
from kernels.experts import ExpertWeights, Routing

# Thinner shares of an expert's matrices leave a GPU's multiprocessors with too little each; whole
# experts do not, but then ranks wait for the one whose experts have most tokens.
_LEAST_ROWS = 256


@dataclass(frozen=True, slots=True)
class ExpertShare:
    """What one rank holds of the experts of a layer.

    Attributes:
        experts: which of them.
        rows: of the gate and of the up matrix of each; the same columns of the down matrix.
    """

    experts: range
    rows: range

    @classmethod
    def of(cls, spec: ExpertsSpec, parallel: TensorParallel) -> "ExpertShare":
        """Share out the rows of each expert, or whole experts where there are few rows.

        Raises:
            ConfigError: if neither divides.
        """
        inner, size = spec.intermediate_size, parallel.size
        has_whole = size > 1 and inner < size * _LEAST_ROWS and spec.num_experts % size == 0
        if has_whole or inner % size:
            return cls(parallel.span(spec.num_experts, "experts"), range(inner))
        return cls(range(spec.num_experts), parallel.span(inner, "rows of an expert"))


class MixedFeedForward:
    """One rank's share of a layer's experts, and of the network that all tokens go to."""

    def __init__(
        self, config: ModelConfig, parameters: Parameters, backend: KernelBackend, layer: int
    ) -> None:
        spec = config.spec.experts
        assert spec is not None
        self._experts = _read_experts(config, spec, parameters, backend, layer)
        self._shared: Callable[[Tensor, BatchLayout], Tensor] | None = None
        if spec.shared_size:
            self._shared = _SharedExpert(spec, parameters, backend, layer)

    def __call__(self, x: Tensor, layout: BatchLayout) -> Tensor:
        """Normed x [T, hidden] -> this rank's part of what to add to the residual stream."""
        out = self._experts(x, is_deterministic=layout.is_deterministic)
        return out if self._shared is None else out.add_(self._shared(x, layout))


class _SharedExpert:
    def __init__(
        self, spec: ExpertsSpec, parameters: Parameters, backend: KernelBackend, layer: int
    ) -> None:
        weight = parameters.rows(("shared_gate", "shared_up"), "weight", layer)
        self._first = backend.make_gated_linear(weight)
        self._second = backend.make_linear(parameters.columns("shared_down", layer), None)
        self._switch: Linear | None = None
        if spec.gates_shared:
            switch = parameters.whole("shared_switch", layer=layer)
            self._switch = backend.make_linear(switch, None)

    def __call__(self, x: Tensor, layout: BatchLayout) -> Tensor:
        fixed = layout.is_deterministic
        out = self._second(self._first(x, is_deterministic=fixed), is_deterministic=fixed)
        if self._switch is not None:
            out *= torch.sigmoid(self._switch(x, is_deterministic=fixed))
        return out


def _read_experts(
    config: ModelConfig,
    spec: ExpertsSpec,
    parameters: Parameters,
    backend: KernelBackend,
    layer: int,
) -> Linear:
    share = ExpertShare.of(spec, parameters.parallel)
    biases: dict[str, Tensor | None] = {}
    if parameters.has_stacks:
        gate_up, down = _read_stacks(spec, parameters, share, layer)
        biases = _read_biases(parameters, share, layer)
    else:
        gate_up, down = _read_matrices(config, parameters, share, layer)
    choice_bias: Tensor | None = None
    if spec.has_choice_bias:
        # of large values that differ little
        choice_bias = parameters.whole("router", CHOICE_BIAS, layer, torch.float32)
    weights = ExpertWeights(
        router=parameters.whole("router", layer=layer),
        choice_bias=choice_bias,
        gate_up=gate_up,
        down=down,
        limit=spec.limit,
        **biases,
    )
    routing = Routing(
        top_k=spec.top_k,
        score=spec.score,
        renormalises=spec.renormalises,
        scale=spec.scale,
        num_groups=spec.num_groups,
        num_top_groups=spec.num_top_groups,
        first_expert=share.experts.start,
    )
    return backend.make_experts(weights, routing)


def _read_matrices(
    config: ModelConfig, parameters: Parameters, share: ExpertShare, layer: int
) -> tuple[Tensor, Tensor]:
    """Stacks [held, 2 * rows, hidden], gate and up by turns, and [held, hidden, rows]."""
    assert config.spec.experts is not None
    num_experts, hidden = config.spec.experts.num_experts, config.hidden_size
    count, rows = len(share.experts), len(share.rows)
    gate_up = parameters.empty(count, 2 * rows, hidden)
    down = parameters.empty(count, hidden, rows)
    start = share.rows.start
    for expert in range(num_experts):
        if expert not in share.experts:
            for role in EXPERT_ROLES:
                parameters.skip_expert(role, layer, expert)
    for place, expert in enumerate(share.experts):
        parameters.expert(gate_up[place, 0::2], "expert_gate", layer, expert, start=start)
        parameters.expert(gate_up[place, 1::2], "expert_up", layer, expert, start=start)
        parameters.expert(down[place], "expert_down", layer, expert, dim=1, start=start)
    return gate_up, down


def _read_stacks(
    spec: ExpertsSpec, parameters: Parameters, share: ExpertShare, layer: int
) -> tuple[Tensor, Tensor]:
    """The same as `_read_matrices`, of tensors of all experts; gate and up come by turns there."""
    rows = share.rows
    stacks = []
    for role in STACK_ROLES:
        if spec.packing == "mxfp4":
            packed = [
                parameters.stack(role, suffix, layer, share.experts, torch.uint8)
                for suffix in PACKED_SUFFIXES
            ]
            stacks.append(unpack_mxfp4(packed[0], packed[1], parameters.dtype))
        else:
            stacks.append(parameters.stack(role, "", layer, share.experts).transpose(1, 2))
    gate_up = stacks[0][:, 2 * rows.start : 2 * rows.stop]
    return gate_up.contiguous(), stacks[1][:, :, rows.start : rows.stop].contiguous()


def _read_biases(
    parameters: Parameters, share: ExpertShare, layer: int
) -> dict[str, Tensor | None]:
    """Biases of router and experts; of an expert whose rows are split one rank adds the second."""
    gate_up, down = (parameters.stack(role, "_bias", layer, share.experts) for role in STACK_ROLES)
    rows, adds_down = share.rows, share.rows.start == 0
    return {
        "router_bias": parameters.whole("router", "bias", layer),
        "gate_up_bias": gate_up[:, 2 * rows.start : 2 * rows.stop].contiguous(),
        "down_bias": down if adds_down else None,
    }
