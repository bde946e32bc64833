"""The least time of a step: every phase of it at a limit of the card."""

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
        kv_bytes: of the keys and values of one position in all layers.
        attention_flop: of one query with one position in all layers.
        bandwidth: bytes per second.
        compute: floating-point operations per second.
    """

    linear_params: float
    head_params: float
    kv_bytes: float
    attention_flop: float
    bandwidth: float
    compute: float

    def seconds(self, work: StepWork) -> float:
        """See `StepTime.seconds`; only sequences' last tokens pass the output layer."""
        num_tokens = sum(work.new_tokens)
        kv_bytes = self.kv_bytes * (sum(work.contexts) + num_tokens)
        attention_flop = self.attention_flop * work.num_pairs()
        attention_s = max(kv_bytes / self.bandwidth, attention_flop / self.compute)
        return (
            self._matrix(self.linear_params, num_tokens)
            + self._matrix(self.head_params, len(work.contexts))
            + attention_s
        )

    def _matrix(self, params: float, num_tokens: int) -> float:
        return 2 * params * max(1 / self.bandwidth, num_tokens / self.compute)


def roofline_of(model: ModelConfig, ceilings: Ceilings) -> RooflineStepTime:
    """The least time of any step of a model whose values have 16 bits."""
    q_size, kv_size = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    # a gated network has three matrices
    num_feed = 3 if "OPT" not in model.architecture and "GPT2" not in model.architecture else 2
    layer = model.hidden_size * (2 * q_size + 2 * kv_size + num_feed * model.intermediate_size)
    return RooflineStepTime(
        linear_params=model.num_layers * layer,
        head_params=model.vocab_size * model.embedding_width,
        kv_bytes=model.kv_bytes_per_token(_VALUE_BYTES),
        attention_flop=4 * model.num_layers * q_size,
        bandwidth=ceilings.bytes_per_s,
        compute=ceilings.flops,
    )
