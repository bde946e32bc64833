"""Mixtures of experts in plain torch: which experts a token goes to, and what they make of it."""

import torch
from torch import Tensor

from kernels.backend import KernelBackend, Linear
from kernels.experts import ExpertWeights, Routing


def choose_experts(
    logits: Tensor, choice_bias: Tensor | None, routing: Routing
) -> tuple[Tensor, Tensor]:
    """Choose the experts of each token.

    Ties go to the lower id. A row that is not finite gets some experts, too.

    Args:
        logits: [T, experts].
        choice_bias: see `ExpertWeights`.

    Returns:
        Ids [T, top_k] int64, the best first, and weights [T, top_k] float32.
    """
    wide = logits.float().nan_to_num(nan=-torch.inf)
    scores = wide.softmax(-1) if routing.score == "softmax" else wide.sigmoid()
    ranks = wide if routing.score == "softmax" and choice_bias is None else scores
    if choice_bias is not None:
        ranks = ranks + choice_bias
    if routing.num_groups > 1:
        ranks = _within_groups(ranks, routing)
    ids = ranks.sort(dim=-1, descending=True, stable=True).indices[:, : routing.top_k]
    weights = scores.gather(1, ids)
    if routing.renormalises:
        # as transformers divides, so that scores that are all 0 stay finite
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return ids, weights * routing.scale


def _within_groups(ranks: Tensor, routing: Routing) -> Tensor:
    """Set the ranks [T, experts] of experts outside the best groups to -inf."""
    groups = ranks.view(len(ranks), routing.num_groups, -1)
    sums = groups.topk(2, dim=-1).values.sum(-1)
    best = sums.sort(dim=-1, descending=True, stable=True).indices[:, : routing.num_top_groups]
    is_best = torch.zeros_like(sums, dtype=torch.bool).scatter_(1, best, value=True)
    return groups.masked_fill(~is_best[:, :, None], -torch.inf).flatten(1)


def clamped_swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """gpt-oss's activation of [T, 2 * intermediate], gate columns first -> [T, intermediate]."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (gate * torch.sigmoid(1.702 * gate) * (up + 1)).to(gate_up.dtype)


class LoopedExperts:
    """One layer's experts, each by itself: for devices that the host waits for anyway."""

    def __init__(self, backend: KernelBackend, weights: ExpertWeights, routing: Routing) -> None:
        """Make linear layers of all experts; the stacked weights are not kept."""
        self._routing = routing
        self._choice_bias = weights.choice_bias
        self._router = backend.make_linear(weights.router, weights.router_bias)
        self._experts = [
            (_first(backend, weights, index), _second(backend, weights, index))
            for index in range(len(weights.gate_up))
        ]

    def __call__(self, x: Tensor, *, is_deterministic: bool = False) -> Tensor:
        """Send tokens [T, hidden] through their experts -> [T, hidden]."""
        routing = self._routing
        logits = self._router(x, is_deterministic=is_deterministic)
        ids, weights = choose_experts(logits, self._choice_bias, routing)
        held = ids - routing.first_expert
        parts = x.new_zeros(*ids.shape, x.shape[1])
        for index, (first, second) in enumerate(self._experts):
            tokens, slots = torch.nonzero(held == index, as_tuple=True)
            if len(tokens):
                inner = first(x[tokens], is_deterministic=is_deterministic)
                outer = second(inner, is_deterministic=is_deterministic)
                weighted = outer.float() * weights[tokens, slots, None]
                parts[tokens, slots] = weighted.to(x.dtype)
        # one by one, as torch sums in another order for other shapes
        total = torch.zeros_like(x, dtype=torch.float32)
        for slot in range(routing.top_k):
            total += parts[:, slot]
        return total.to(x.dtype)


def _first(backend: KernelBackend, weights: ExpertWeights, index: int) -> Linear:
    weight = _halves(weights.gate_up[index])
    bias = None if weights.gate_up_bias is None else _halves(weights.gate_up_bias[index])
    if not weights.limit:
        return backend.make_gated_linear(weight, bias)
    linear, limit = backend.make_linear(weight, bias), weights.limit

    def first(x: Tensor, *, is_deterministic: bool = False) -> Tensor:
        return clamped_swiglu(linear(x, is_deterministic=is_deterministic), limit)

    return first


def _second(backend: KernelBackend, weights: ExpertWeights, index: int) -> Linear:
    bias = None if weights.down_bias is None else weights.down_bias[index].clone()
    return backend.make_linear(weights.down[index].clone(), bias)


def _halves(rows: Tensor) -> Tensor:
    """Rows of gate and up by turns -> those of the gate before those of the other."""
    return torch.cat((rows[0::2], rows[1::2]))
