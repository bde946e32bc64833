"""Layers of experts for tests, and what they compute, written as plainly as can be."""

from dataclasses import fields, replace

import torch
from torch import Tensor

from kernels.experts import ExpertWeights, Routing
from kernels.looped_experts import choose_experts


def make_weights(
    shape: tuple[int, int, int],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    *,
    has_biases: bool = False,
    limit: float = 0.0,
) -> ExpertWeights:
    """Make random ones of so many experts, hidden and inner values."""
    num_experts, hidden, inner = shape

    def random(*shape: int) -> Tensor:
        return torch.randn(shape).mul_(shape[-1] ** -0.5).to(device, dtype)

    weights = ExpertWeights(
        router=2 * random(num_experts, hidden),
        gate_up=random(num_experts, 2 * inner, hidden),
        down=random(num_experts, hidden, inner),
        limit=limit,
    )
    if not has_biases:
        return weights
    return replace(
        weights,
        router_bias=random(num_experts),
        choice_bias=random(num_experts).float(),
        gate_up_bias=random(num_experts, 2 * inner),
        down_bias=random(num_experts, hidden),
    )


def part_of(weights: ExpertWeights, held: range) -> ExpertWeights:
    """What a rank has that holds some of the experts."""
    ours = {
        field.name: getattr(weights, field.name)[held.start : held.stop]
        for field in fields(weights)
        if field.name.startswith(("gate_up", "down")) and getattr(weights, field.name) is not None
    }
    return replace(weights, **ours)


def expected(
    x: Tensor, weights: ExpertWeights, routing: Routing, held: range | None = None
) -> Tensor:
    """Token by token and expert by expert, in float32."""
    logits = x.float() @ weights.router.float().T
    if weights.router_bias is not None:
        logits += weights.router_bias.float()
    ids, shares = choose_experts(logits, weights.choice_bias, routing)
    out = torch.zeros_like(x, dtype=torch.float32)
    for token, slot in torch.cartesian_prod(*map(torch.arange, ids.shape)).tolist():
        expert = int(ids[token, slot])
        if held is None or expert in held:
            out[token] += shares[token, slot] * _one(x[token].float(), weights, expert)
    return out.to(x.dtype)


def _one(x: Tensor, weights: ExpertWeights, expert: int) -> Tensor:
    rows = weights.gate_up[expert].float() @ x
    if weights.gate_up_bias is not None:
        rows += weights.gate_up_bias[expert].float()
    gate, up = rows[0::2], rows[1::2]
    if weights.limit:
        gate, up = gate.clamp(max=weights.limit), up.clamp(-weights.limit, weights.limit)
        inner = gate * torch.sigmoid(1.702 * gate) * (up + 1)
    else:
        inner = gate * torch.sigmoid(gate) * up
    out = weights.down[expert].float() @ inner
    return out if weights.down_bias is None else out + weights.down_bias[expert].float()
