"""OPT (arXiv:2205.01068): norms before or after, embeddings as wide as the layers or narrower."""

from torch import Tensor

from engine.architectures.opt import POSITION_OFFSET
from engine.config import ModelConfig
from engine.model.gpt_layers import GptLayer, GptLayers, LayerNorm, PositionEmbedding
from engine.model.parameters import Parameters
from engine.model.vocab import VocabEmbedding, VocabHead
from kernels.backend import KernelBackend, Linear
from kernels.batch import BatchLayout

_ROOT = "model.decoder"


class Opt:
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
        self.num_kv_heads = parameters.parallel.share(config.num_heads, "attention heads")
        self._embedding = VocabEmbedding(
            config, parameters, backend, f"{_ROOT}.embed_tokens.weight"
        )
        self._positions = PositionEmbedding(_positions(config, parameters), backend, num_positions)
        self._project_in, self._project_out = _projections(config, parameters, backend)
        layers = [
            _read_layer(config, parameters, backend, f"{_ROOT}.layers.{index}")
            for index in range(config.num_layers)
        ]
        norm = f"{_ROOT}.final_layer_norm"
        last = LayerNorm.read(parameters, norm, config.hidden_size) if config.norm_first else None
        self._layers = GptLayers(config, layers, last, parameters.parallel, backend, backend.relu)
        self._head = VocabHead(config, parameters, backend, self._embedding.weight)

    def hidden(self, tokens: Tensor, kv: Tensor, layout: BatchLayout) -> Tensor:
        """Run one batch; see `engine.model.model.Model`."""
        x = self._embedding(tokens)
        if self._project_in is not None:
            x = self._project_in(x, is_deterministic=layout.is_deterministic)
        return self._layers(self._positions(x, layout), kv, layout)

    def logits(self, hidden: Tensor, *, is_deterministic: bool = False) -> Tensor:
        """Multiply by the rows of the vocabulary; see `engine.model.model.Model`."""
        if self._project_out is not None:
            hidden = self._project_out(hidden, is_deterministic=is_deterministic)
        return self._head(hidden, is_deterministic=is_deterministic)


def _positions(config: ModelConfig, parameters: Parameters) -> Tensor:
    num_rows = config.max_position + POSITION_OFFSET
    table = parameters.whole(f"{_ROOT}.embed_positions.weight", num_rows, config.hidden_size)
    return table[POSITION_OFFSET:]


def _projections(
    config: ModelConfig, parameters: Parameters, backend: KernelBackend
) -> tuple[Linear | None, Linear | None]:
    """Between the widths of embedding and layers, if they differ; small, so whole on every rank."""
    hidden, width = config.hidden_size, config.embedding_width
    if hidden == width:
        return None, None
    into = parameters.whole(f"{_ROOT}.project_in.weight", hidden, width)
    out = parameters.whole(f"{_ROOT}.project_out.weight", width, hidden)
    return backend.make_linear(into, None), backend.make_linear(out, None)


def _read_layer(
    config: ModelConfig, parameters: Parameters, backend: KernelBackend, prefix: str
) -> GptLayer:
    hidden, inner = config.hidden_size, config.intermediate_size
    parts = [f"{prefix}.self_attn.{part}_proj" for part in ("q", "k", "v")]

    def split_by_rows(names: list[str], count: int) -> Linear:
        weight = parameters.rows({f"{name}.weight": count for name in names}, hidden)
        return backend.make_linear(weight, parameters.rows({f"{n}.bias": count for n in names}))

    def split_by_columns(name: str, count: int) -> Linear:
        weight = parameters.columns(f"{name}.weight", hidden, count)
        return backend.make_linear(weight, parameters.summed_bias(f"{name}.bias", hidden))

    return GptLayer(
        attention_norm=LayerNorm.read(parameters, f"{prefix}.self_attn_layer_norm", hidden),
        qkv=split_by_rows(parts, hidden),
        out=split_by_columns(f"{prefix}.self_attn.out_proj", hidden),
        feed_norm=LayerNorm.read(parameters, f"{prefix}.final_layer_norm", hidden),
        feed_in=split_by_rows([f"{prefix}.fc1"], inner),
        feed_out=split_by_columns(f"{prefix}.fc2", inner),
    )
