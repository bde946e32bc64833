"""The device border: what a model and a worker need from a device, and nothing more.

A backend is chosen once (`kernels.select.select_backend`); no other code asks for the device.
Tensors named `kv_layer` are views `kv[:, layer]` of the pool `kv[num_blocks, num_layers, 2,
num_kv_heads, block_size, head_dim]`, so their block stride covers all layers.
"""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from kernels.batch import BatchColumns, BatchLayout, GatheredBatch, Sampled, SamplingColumns
from kernels.experts import ExpertWeights, Routing

Activation = Literal["silu", "gelu", "relu"]
# of embedded tokens [T, hidden], which they change, the KV pool and a batch -> [T, hidden]
Layers: TypeAlias = Callable[[Tensor, Tensor, BatchLayout], Tensor]


class Linear(Protocol):
    """A weight matrix (and bias) in the device's preferred form."""

    def __call__(self, x: Tensor, *, is_deterministic: bool = False) -> Tensor:
        """Compute x @ weight.T + bias.

        Args:
            x: [T, in_features], contiguous, the backend's dtype.
            is_deterministic: whether the bits of a row may not depend on the other rows.

        Returns:
            [T, out_features], the same dtype, or float32 from a head.
        """
        ...


class BlockChecksum(Protocol):
    """Checksums of the blocks of a pool; any changed word changes its block's."""

    def __call__(self, blocks: Tensor) -> Tensor:
        """Checksums [N] int64 of blocks [N] int64, on the pool's device; see `Checksum`."""
        ...


class KernelBackend(Protocol):
    """The operations of one device. Outputs are new tensors unless a docstring says otherwise.

    Attributes:
        is_chunked_alike: whether a token that attends behind `BatchLayout.num_decodes` gets the
            same bits in every chunk, also as the only token of one.
    """

    device: torch.device
    dtype: torch.dtype
    is_chunked_alike: bool

    def make_linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """Take ownership of weight [out_features, in_features] and bias [out_features]."""
        ...

    def make_head(self, weight: Tensor) -> Linear:
        """Make a linear layer of weight [num_choices, in_features] that computes logits.

        They are float32 where the backend can have that cheaply: bfloat16 has steps of 0.125 from
        16 on, so that likely tokens tie.
        """
        ...

    def make_gated_linear(
        self, weight: Tensor, bias: Tensor | None = None, activation: Activation = "silu"
    ) -> Linear:
        """Make a layer that computes silu(x @ gate.T) * (x @ up.T) (SwiGLU, arXiv:2002.05202).

        Args:
            weight: [2 * intermediate, in_features], the rows of the gate before those of the up
                matrix; the layer takes ownership and returns [T, intermediate].
            bias: [2 * intermediate], added to both products.
            activation: of the gate, `silu` or the tanh form of `gelu`.
        """
        ...

    def make_experts(self, weights: ExpertWeights, routing: Routing) -> Linear:
        """Make a layer that sends tokens [T, hidden] to experts and adds up what these compute.

        Args:
            weights: the layer takes ownership of them. Of a rank that holds a part of the experts,
                or of each, it returns this rank's part of the sum.
        """
        ...

    def append_blocks(self, block_tables: Tensor, places: Tensor, blocks: Tensor) -> None:
        """Write blocks [N] int64 at places [N] int64 of the flat block tables IN PLACE.

        Args:
            block_tables: [rows, max_blocks] int32, contiguous.
            places: an entry that is written twice gets the same block.
        """
        ...

    def gather_batch(
        self, columns: BatchColumns, block_tables: Tensor, last_tokens: Tensor, block_size: int
    ) -> tuple[Tensor, GatheredBatch]:
        """Look up a batch in the tables of all rows.

        Args:
            block_tables: [rows, max_blocks] int32, contiguous.
            last_tokens: [rows] int64, what the rows that decode are fed with.

        Returns:
            Its tokens [T] int64, and where they live.
        """
        ...

    def embed(self, tokens: Tensor, weight: Tensor) -> Tensor:
        """Look up tokens [T] int64 in weight [vocab, hidden] -> [T, hidden]."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Root-mean-square norm of x [T, hidden] with statistics in float32 (arXiv:1910.07467).

        Args:
            weight: [hidden], the backend's dtype or float32.
        """
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add x to `residual` IN PLACE, both [T, hidden], and return the norm of the sum."""
        ...

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Norm of mean and variance of x [T, hidden], statistics in float32 (arXiv:1607.06450)."""
        ...

    def add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        """Add x to `residual` IN PLACE, both [T, hidden], and return the layer norm of the sum."""
        ...

    def rope_write(
        self, qkv: Tensor, cos_sin: Tensor, kv_layer: Tensor, layout: BatchLayout
    ) -> Tensor:
        """Rotate queries and keys, write keys and values into their slots IN PLACE.

        Args:
            qkv: [T, (num_heads + 2 * num_kv_heads) * head_dim], heads of q, then k, then v.
            cos_sin: [max_position, head_dim] float32: cosines of the head_dim / 2 frequencies, then
                sines; pairs are (i, i + head_dim / 2) as in LLaMA (arXiv:2104.09864).
            kv_layer: [num_blocks, 2, num_kv_heads, block_size, head_dim].

        Returns:
            [T, num_heads, head_dim] rotated queries.
        """
        ...

    def run_layers(self, layers: Layers, x: Tensor, kv: Tensor, layout: BatchLayout) -> Tensor:
        """Run the layers of a step.

        A backend may note the operations that they call, and repeat these for a batch of the same
        shape instead of calling the layers. What they do has to follow from that shape, and equal
        layers have to do the same.

        Args:
            x: [T, hidden], may be overwritten.
        """
        ...

    def kv_write(self, qkv: Tensor, kv_layer: Tensor, layout: BatchLayout) -> Tensor:
        """Write keys and values into their slots IN PLACE, for models that rotate nothing.

        Args:
            qkv: [T, (num_heads + 2 * num_kv_heads) * head_dim], heads of q, then k, then v.
            kv_layer: [num_blocks, 2, num_kv_heads, block_size, head_dim].

        Returns:
            [T, num_heads, head_dim] queries.
        """
        ...

    def norm_rope_write(
        self,
        qkv: Tensor,
        gains: Tensor,
        eps: float,
        cos_sin: Tensor | None,
        kv_layer: Tensor,
        layout: BatchLayout,
        means: Tensor | None = None,
    ) -> Tensor:
        """Do what `rope_write` does with queries and keys that are normed first.

        Args:
            qkv: [T, (num_heads + 2 * num_kv_heads) * head_dim], heads of q, then k, then v.
            gains: [num_heads + num_kv_heads, head_dim], what the norm of each head multiplies by;
                the backend's dtype or float32.
            cos_sin: None to rotate nothing.
            means: [T, 2] float32, mean squares of the queries and of the keys of a token; None for
                those of each head by itself.

        Returns:
            [T, num_heads, head_dim] queries.
        """
        ...

    def mean_squares(self, x: Tensor, first: int, second: int) -> Tensor:
        """Mean squares of columns [0, first) and [first, first + second) of x -> [T, 2] float32."""
        ...

    def prepare(
        self, layout: BatchLayout, kv: Tensor, windows: Sequence[int] = (0,)
    ) -> BatchLayout:
        """Plan the step's attention; once per step, before the first `attention`.

        The plan is made on the device and its grids depend only on shapes, so a captured graph
        replays with other lengths.

        Args:
            kv: [num_blocks, ..., num_kv_heads, block_size, head_dim], the pool or a layer of it.
            windows: with which `attention` will be called.
        """
        ...

    def attention(
        self,
        q: Tensor,
        kv_layer: Tensor,
        layout: BatchLayout,
        scale: float,
        *,
        softcap: float = 0.0,
        window: int = 0,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """PagedAttention (paper, section 4.1): a token attends to cached ones up to itself.

        Args:
            q: [T, num_heads, head_dim].
            kv_layer: [num_blocks, 2, num_kv_heads, block_size, head_dim], the new tokens already
                written.
            softcap: scores s become softcap * tanh(s / softcap) (Gemma 2); 0 for none.
            window: tokens that one attends to, the last of which is itself; 0 for all. Slots before
                the window may hold anything, and places of the block tables any valid block id.
            sinks: [num_heads] float32, for each head the score of something without a value, which
                takes its share of the weights (gpt-oss); None for none.

        Returns:
            [T, num_heads * head_dim].
        """
        ...

    def softcap(self, logits: Tensor, cap: float) -> Tensor:
        """Cap * tanh(logits / cap), IN PLACE; returns the logits."""
        ...

    def relu(self, x: Tensor) -> Tensor:
        """max(x, 0) of x [T, n]."""
        ...

    def gelu(self, x: Tensor) -> Tensor:
        """GELU of x [T, n] in its tanh form, GPT-2's `gelu_new` (arXiv:1606.08415)."""
        ...

    def copy_blocks(self, kv: Tensor, sources: Tensor, destinations: Tensor) -> None:
        """Copy whole blocks IN PLACE: kv[destinations] = kv[sources], both [N] int64."""
        ...

    def make_checksum(self, kv: Tensor) -> BlockChecksum:
        """Make the checksums of a pool [num_blocks, ...], contiguous; the same on all backends."""
        ...

    def mask_tokens(self, scores: Tensor, masks: Tensor, places: Tensor | None = None) -> None:
        """Set scores [K, vocab] float32 to -inf IN PLACE where a bit is not set.

        Args:
            masks: [N, ceil(vocab / 32)] int32, the lowest bit of a word first.
            places: [K] int32, which of the masks is a row's, or -1 for none; None where N is K and
                they are in order.
        """
        ...

    def sample(self, logits: Tensor, columns: SamplingColumns) -> Sampled:
        """Choose one token per row of logits [S, vocab] float32 or the backend's dtype.

        Temperature, then top-k, top-p, min-p; Gumbel noise from a counter hash of (seed, position,
        token id).
        """
        ...

    def sample_masked(
        self, logits: Tensor, columns: SamplingColumns, masks: Tensor, places: Tensor
    ) -> Sampled:
        """As `sample` without log-probabilities, among the tokens that masks leave.

        A row gets `kernels.sampling.BROKEN` as there, whatever is left of it, and `NONE_LEFT` where
        no number is left of a sound one.

        Args:
            logits: as of `sample`, may be overwritten.
            masks, places: [N, ceil(vocab / 32)] and [S], see `mask_tokens`.
        """
        ...

    def report_logprobs(self, tokens: Tensor, logits: Tensor, num_logprobs: int) -> Sampled:
        """Attach log-probabilities to tokens [S], the same bits as `sample` with other tokens.

        Args:
            logits: as of `sample`.
            num_logprobs: most likely tokens to list for each row; 0 for none.
        """
        ...
