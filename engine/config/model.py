"""The shape of a model."""

from dataclasses import dataclass, field

from engine.config.kv_groups import KVGroups
from engine.config.model_spec import ModelSpec
from engine.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of a decoder-only transformer, see `engine.architectures`.

    Attributes:
        hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim: as published.
        vocab_size: rows of the embedding.
        max_position: longest context in tokens that the weights were made for.
        embedding_size: columns of the embedding, projected to `hidden_size` where they differ; 0
            for `hidden_size` itself.
        tie_embeddings: whether the output layer is the embedding.
        spec: what is computed.
        eos_token_ids: ids that end a sequence.
        num_token_ids: ids that the tokenizer knows, the only ones that are ever chosen; 0 for all
            rows of the embedding.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    norm_eps: float
    embedding_size: int = 0
    tie_embeddings: bool = False
    spec: ModelSpec = field(default_factory=ModelSpec)
    eos_token_ids: tuple[int, ...] = ()
    num_token_ids: int = 0

    @property
    def num_choices(self) -> int:
        """Columns of the logits."""
        return min(self.num_token_ids or self.vocab_size, self.vocab_size)

    @property
    def embedding_width(self) -> int:
        """Columns of the embedding."""
        return self.embedding_size or self.hidden_size

    @property
    def linear_params(self) -> int:
        """Weights of all layers that every token passes."""
        heads = 2 * self.head_dim * (self.num_heads + self.num_kv_heads)
        kinds = [self.spec.layer(index).mlp for index in range(self.num_layers)]
        # a gated network has three matrices
        inner = self.intermediate_size * (3 * kinds.count("gated") + 2 * kinds.count("plain"))
        if (experts := self.spec.experts) is not None:
            inner += kinds.count("experts") * (experts.num_experts + 3 * experts.shared_size)
        return self.hidden_size * (self.num_layers * heads + inner)

    @property
    def expert_params(self) -> int:
        """Weights of one expert in all layers that have experts; 0 if none has."""
        if (experts := self.spec.experts) is None:
            return 0
        layers = range(self.num_layers)
        num_mixed = sum(self.spec.layer(index).mlp == "experts" for index in layers)
        return 3 * num_mixed * self.hidden_size * experts.intermediate_size

    @property
    def kv_groups(self) -> KVGroups:
        """How its layers share the KV pool."""
        spec, num_layers = self.spec, self.num_layers
        return KVGroups.of([spec.window(i, self.max_position) for i in range(num_layers)])

    def kv_heads_per_rank(self, tensor_parallel_size: int) -> int:
        """Key-value heads that each rank holds; ranks share one where there are more of them.

        Raises:
            ConfigError: if neither of the two numbers divides the other.
        """
        count, size = self.num_kv_heads, tensor_parallel_size
        if max(count, size) % min(count, size):
            raise ConfigError(
                f"{count} key-value heads can be neither split over nor copied to "
                f"tensor_parallel_size={size} ranks; choose a divisor or a multiple of {count}"
            )
        return max(1, count // size)

    def kv_bytes_per_token(self, bytes_per_value: int, tensor_parallel_size: int = 1) -> int:
        """Bytes that the keys and values of one token take on one rank, before any is released."""
        num_kv_heads, groups = self.kv_heads_per_rank(tensor_parallel_size), self.kv_groups
        num_layers = groups.count * groups.num_layers
        return 2 * num_layers * num_kv_heads * self.head_dim * bytes_per_value
