"""The least time of a step: every phase of it at a limit of the card."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from engine.config import ModelConfig
from load_tests.card import Ceilings
from load_tests.simulator.step_time import StepWork

_VALUE_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineStepTime:
    """No step can be faster: each of its three phases, one after the other, at a limit of the card.

    Attributes:
        linear_params, head_params: weights of the layers and of the output layer, 2 bytes each.
        expert_params: weights of one expert in all layers that have experts.
        num_experts, top_k: experts of such a layer, and of a token; tokens choose evenly.
        kv_bytes: of the keys and values of one position in a layer.
        attention_flop: of one query with one position in a layer.
        layers: how many of them have which window, see `KernelBackend.attention`.
        bandwidth: bytes per second.
        compute: floating-point operations per second.
    """

    linear_params: float
    head_params: float
    kv_bytes: float
    attention_flop: float
    bandwidth: float
    compute: float
    layers: Mapping[int, int]
    expert_params: float = 0.0
    num_experts: int = 1
    top_k: int = 1

    def seconds(self, work: StepWork) -> float:
        """See `StepTime.seconds`; only sequences' last tokens pass the output layer."""
        num_tokens = sum(work.new_tokens)
        return (
            self._matrix(self.linear_params, num_tokens)
            + self._experts(num_tokens)
            + self._matrix(self.head_params, len(work.contexts))
            + self._attention(work)
        )

    def _attention(self, work: StepWork) -> float:
        positions = pairs = 0.0
        for window, num_layers in self.layers.items():
            positions += num_layers * (work.num_positions(window) + sum(work.new_tokens))
            pairs += num_layers * work.num_pairs(window=window)
        return max(
            self.kv_bytes * positions / self.bandwidth, self.attention_flop * pairs / self.compute
        )

    def _experts(self, num_tokens: int) -> float:
        missed = (1 - self.top_k / self.num_experts) ** num_tokens
        num_bytes = 2 * self.expert_params * self.num_experts * (1 - missed)
        flop = 2 * self.expert_params * self.top_k * num_tokens
        return max(num_bytes / self.bandwidth, flop / self.compute)

    def _matrix(self, params: float, num_tokens: int) -> float:
        return 2 * params * max(1 / self.bandwidth, num_tokens / self.compute)


def roofline_of(model: ModelConfig, ceilings: Ceilings) -> RooflineStepTime:
    """The least time of any step of a model whose values have 16 bits."""
    q_size, kv_size = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    experts: dict[str, int] = {}
    if model.spec.experts is not None:
        num_experts, top_k = model.spec.experts.num_experts, model.spec.experts.top_k
        experts = {"num_experts": num_experts, "top_k": top_k}
    return RooflineStepTime(
        **experts,
        linear_params=model.linear_params,
        expert_params=model.expert_params,
        head_params=model.vocab_size * model.embedding_width,
        kv_bytes=2 * kv_size * _VALUE_BYTES,
        attention_flop=4 * q_size,
        layers=Counter(model.spec.layer(index).window for index in range(model.num_layers)),
        bandwidth=ceilings.bytes_per_s,
        compute=ceilings.flops,
    )
