"""GPT-2, and GPT-3's shapes in its form; matrices are stored inputs first (Conv1D)."""

from torch import Tensor

from engine.config import ModelConfig
from engine.model.gpt_layers import GptLayer, GptLayers, LayerNorm, PositionEmbedding
from engine.model.parameters import Parameters
from engine.model.vocab import VocabEmbedding, VocabHead
from kernels.backend import KernelBackend, Linear
from kernels.batch import BatchLayout

_ROOT = "transformer"


class Gpt2:
    """One rank's share; see `engine.model.model.Model`."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        backend: KernelBackend,
        *,
        num_positions: int,
    ) -> None:
        """Read all parameters; see `engine.model.model.MakeModel`."""
        hidden = config.hidden_size
        self.num_kv_heads = parameters.parallel.share(config.num_heads, "attention heads")
        self._embedding = VocabEmbedding(config, parameters, backend, f"{_ROOT}.wte.weight")
        table = parameters.whole(f"{_ROOT}.wpe.weight", config.max_position, hidden)
        self._positions = PositionEmbedding(table, backend, num_positions)
        layers = [
            _read_layer(config, parameters, backend, f"{_ROOT}.h.{index}")
            for index in range(config.num_layers)
        ]
        last = LayerNorm.read(parameters, f"{_ROOT}.ln_f", hidden)
        self._layers = GptLayers(config, layers, last, parameters.parallel, backend, backend.gelu)
        self._head = VocabHead(config, parameters, backend, self._embedding.weight)

    def hidden(self, tokens: Tensor, kv: Tensor, layout: BatchLayout) -> Tensor:
        """Run one batch; see `engine.model.model.Model`."""
        return self._layers(self._positions(self._embedding(tokens), layout), kv, layout)

    def logits(self, hidden: Tensor, *, is_deterministic: bool = False) -> Tensor:
        """Multiply by the rows of the vocabulary; see `engine.model.model.Model`."""
        return self._head(hidden, is_deterministic=is_deterministic)


def _read_layer(
    config: ModelConfig, parameters: Parameters, backend: KernelBackend, prefix: str
) -> GptLayer:
    hidden, inner = config.hidden_size, config.intermediate_size

    def split_by_outputs(name: str, counts: tuple[int, ...]) -> Linear:
        weight = parameters.sections(f"{prefix}.{name}.weight", counts, hidden)
        return backend.make_linear(weight, parameters.sections(f"{prefix}.{name}.bias", counts))

    def split_by_inputs(name: str, count: int) -> Linear:
        weight = parameters.columns_of_transposed(f"{prefix}.{name}.weight", hidden, count)
        return backend.make_linear(weight, parameters.summed_bias(f"{prefix}.{name}.bias", hidden))

    return GptLayer(
        attention_norm=LayerNorm.read(parameters, f"{prefix}.ln_1", hidden),
        qkv=split_by_outputs("attn.c_attn", (hidden, hidden, hidden)),
        out=split_by_inputs("attn.c_proj", hidden),
        feed_norm=LayerNorm.read(parameters, f"{prefix}.ln_2", hidden),
        feed_in=split_by_outputs("mlp.c_fc", (inner,)),
        feed_out=split_by_inputs("mlp.c_proj", inner),
    )
