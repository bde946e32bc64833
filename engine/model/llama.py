"""The LLaMA family: LLaMA 1 to 3, SmolLM2, Mistral, Qwen2 (arXiv:2302.13971)."""

from torch import Tensor

from engine.config import ModelConfig
from engine.model.parameters import Parameters
from engine.model.rope import cos_sin_table
from engine.model.vocab import VocabEmbedding, VocabHead
from kernels.backend import KernelBackend, Linear
from kernels.batch import BatchLayout


class Llama:
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
        self.num_kv_heads = config.kv_heads_per_rank(parameters.parallel.size)
        self._backend = backend
        self._eps = config.norm_eps
        table = cos_sin_table(config.rope, config.head_dim, num_positions).to(backend.device)
        self._embedding = VocabEmbedding(config, parameters, backend, "model.embed_tokens.weight")
        self._layers = [
            LlamaLayer(config, parameters, backend, table, f"model.layers.{index}")
            for index in range(config.num_layers)
        ]
        # norms[i] comes before layer i, the last one after all layers
        self._norms = [
            parameters.whole(f"model.layers.{index}.input_layernorm.weight", config.hidden_size)
            for index in range(config.num_layers)
        ]
        self._norms.append(parameters.whole("model.norm.weight", config.hidden_size))
        tied = self._embedding.weight if config.tie_embeddings else None
        self._head = VocabHead(config, parameters, backend, tied)

    def hidden(self, tokens: Tensor, kv: Tensor, layout: BatchLayout) -> Tensor:
        """Run one batch; see `engine.model.model.Model`."""
        residual = self._embedding(tokens)
        x = self._backend.rms_norm(residual, self._norms[0], self._eps)
        for index, (layer, norm) in enumerate(zip(self._layers, self._norms[1:], strict=True)):
            x = layer(x, residual, kv[:, index], layout)
            x = self._backend.add_rms_norm(x, residual, norm, self._eps)
        return x

    def logits(self, hidden: Tensor, *, is_deterministic: bool = False) -> Tensor:
        """Multiply by the rows of the vocabulary; see `engine.model.model.Model`."""
        return self._head(hidden, is_deterministic=is_deterministic)


class LlamaLayer:
    """Attention and gated feed-forward network of one rank, with the norm between them."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        backend: KernelBackend,
        cos_sin: Tensor,
        prefix: str,
    ) -> None:
        self._backend = backend
        self._parallel = parameters.parallel
        self._cos_sin = cos_sin
        self._scale = config.head_dim**-0.5
        self._eps = config.norm_eps
        self._qkv = _fused_qkv(config, parameters, backend, f"{prefix}.self_attn")
        self._out = _output(config, parameters, backend, f"{prefix}.self_attn.o_proj")
        self._norm = parameters.whole(
            f"{prefix}.post_attention_layernorm.weight", config.hidden_size
        )
        gate_up = {
            f"{prefix}.mlp.{part}_proj.weight": config.intermediate_size for part in ("gate", "up")
        }
        self._gate_up = backend.make_gated_linear(parameters.rows(gate_up, config.hidden_size))
        down = parameters.columns(
            f"{prefix}.mlp.down_proj.weight", config.hidden_size, config.intermediate_size
        )
        self._down = backend.make_linear(down, None)

    def __call__(
        self, x: Tensor, residual: Tensor, kv_layer: Tensor, layout: BatchLayout
    ) -> Tensor:
        """Normed x [T, hidden] -> what to add to `residual`, which takes the attention IN PLACE."""
        backend, parallel, fixed = self._backend, self._parallel, layout.is_deterministic
        qkv = self._qkv(x, is_deterministic=fixed)
        q = backend.rope_write(qkv, self._cos_sin, kv_layer, layout)
        attended = backend.attention(q, kv_layer, layout, self._scale)
        x = parallel.all_reduce(self._out(attended, is_deterministic=fixed), is_deterministic=fixed)
        x = backend.add_rms_norm(x, residual, self._norm, self._eps)
        x = self._gate_up(x, is_deterministic=fixed)
        return parallel.all_reduce(self._down(x, is_deterministic=fixed), is_deterministic=fixed)


def _fused_qkv(
    config: ModelConfig, parameters: Parameters, backend: KernelBackend, prefix: str
) -> Linear:
    parameters.parallel.share(config.num_heads, f"heads of {prefix}.q_proj")
    kv_heads = {f"{prefix}.{name}_proj": config.num_kv_heads for name in ("k", "v")}
    heads = {f"{prefix}.q_proj": config.num_heads} | kv_heads
    rows = {name: count * config.head_dim for name, count in heads.items()}

    def read(suffix: str, *tail: int) -> Tensor:
        copied = _suffixed(kv_heads, suffix)
        return parameters.rows(_suffixed(rows, suffix), *tail, kv_heads=copied)

    bias = read("bias") if config.attention_bias else None
    return backend.make_linear(read("weight", config.hidden_size), bias)


def _output(
    config: ModelConfig, parameters: Parameters, backend: KernelBackend, name: str
) -> Linear:
    width = config.num_heads * config.head_dim
    weight = parameters.columns(f"{name}.weight", config.hidden_size, width)
    if not config.output_bias:
        return backend.make_linear(weight, None)
    return backend.make_linear(weight, parameters.summed_bias(f"{name}.bias", config.hidden_size))


def _suffixed(counts: dict[str, int], suffix: str) -> dict[str, int]:
    return {f"{name}.{suffix}": count for name, count in counts.items()}
