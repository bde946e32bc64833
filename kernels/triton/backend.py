"""The backend of NVIDIA GPUs: Triton kernels, and cuBLAS where it is faster."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from kernels.backend import Activation, BlockChecksum, Linear
from kernels.batch import BatchColumns, BatchLayout, GatheredBatch, Sampled, SamplingColumns
from kernels.experts import ExpertWeights, Routing
from kernels.reference import ReferenceBackend
from kernels.triton import activation, batch, copy, norm, rope
from kernels.triton.attention import dispatch
from kernels.triton.checksum import TritonChecksum
from kernels.triton.experts.triton_experts import TritonExperts
from kernels.triton.linear.gated_linear import TritonGatedLinear
from kernels.triton.linear.triton_linear import TritonLinear
from kernels.triton.sampling import masking, sample


class TritonBackend(ReferenceBackend):
    """`kernels.backend.KernelBackend` in Triton; contracts are documented there.

    Everything may be captured in a CUDA graph: no operation waits for the device, and which kernels
    run depends only on shapes and host flags.
    """

    is_chunked_alike = True

    def make_linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """Keep the weight as it is."""
        return TritonLinear(weight, bias)

    def make_head(self, weight: Tensor) -> Linear:
        """Leave logits in the backend's dtype: float32 would double what sampling reads."""
        return self.make_linear(weight, None)

    def make_gated_linear(
        self, weight: Tensor, bias: Tensor | None = None, activation: Activation = "silu"
    ) -> Linear:
        """Keep the weight as it is."""
        return TritonGatedLinear(weight, bias, activation)

    def make_experts(self, weights: ExpertWeights, routing: Routing) -> Linear:
        """Keep the weights as they are."""
        return TritonExperts(weights, routing)

    def append_blocks(self, block_tables: Tensor, places: Tensor, blocks: Tensor) -> None:
        """One launch."""
        batch.append_blocks(block_tables, places, blocks)

    def gather_batch(
        self, columns: BatchColumns, block_tables: Tensor, last_tokens: Tensor, block_size: int
    ) -> tuple[Tensor, GatheredBatch]:
        """One launch."""
        return batch.gather_batch(columns, block_tables, last_tokens, block_size)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Normalise in float32 and round once."""
        return norm.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add to `residual` in place, round, normalise."""
        return norm.add_rms_norm(x, residual, weight, eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Normalise in float32 and round once."""
        return norm.layer_norm(x, weight, bias, eps)

    def add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        """Add to `residual` in place, round, normalise."""
        return norm.add_layer_norm(x, residual, weight, bias, eps)

    def rope_write(
        self, qkv: Tensor, cos_sin: Tensor, kv_layer: Tensor, layout: BatchLayout
    ) -> Tensor:
        """Rotate in float32; tokens with slot -1 are not written."""
        return rope.rope_write(qkv, cos_sin, layout.positions, layout.slot_mapping, kv_layer)

    def kv_write(self, qkv: Tensor, kv_layer: Tensor, layout: BatchLayout) -> Tensor:
        """Write without rotating; tokens with slot -1 are not written."""
        return rope.kv_write(qkv, layout.slot_mapping, kv_layer)

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
        """Normalise and rotate in float32, round once; tokens with slot -1 are not written."""
        places = (layout.positions, layout.slot_mapping)
        return rope.norm_rope_write(qkv, gains, eps, cos_sin, *places, kv_layer, means)

    def mean_squares(self, x: Tensor, first: int, second: int) -> Tensor:
        """Sum in float32."""
        return norm.mean_squares(x, first, second)

    def prepare(
        self, layout: BatchLayout, kv: Tensor, windows: Sequence[int] = (0,)
    ) -> BatchLayout:
        """Split the attention of the step; see `kernels.triton.attention.attention_work`."""
        work = dispatch.plan(layout, kv, windows)
        others = tuple(replace(other, attention_work=work) for other in layout.others)
        return replace(layout, attention_work=work, others=others)

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
        """One launch for the rows that decode, one for those that prefill."""
        return dispatch.attention(
            q, kv_layer, layout, scale, softcap=softcap, window=window, sinks=sinks
        )

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Compute in float32 and round once."""
        return activation.silu_mul(gate_up)

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        """Compute in float32 and round once."""
        return activation.gelu_mul(gate_up)

    def softcap(self, logits: Tensor, cap: float) -> Tensor:
        """One pass."""
        return activation.softcap(logits, cap)

    def relu(self, x: Tensor) -> Tensor:
        """One pass."""
        return activation.relu(x)

    def gelu(self, x: Tensor) -> Tensor:
        """Compute in float32 and round once."""
        return activation.gelu(x)

    def copy_blocks(self, kv: Tensor, sources: Tensor, destinations: Tensor) -> None:
        """Copy all blocks at once; no destination may be a source too."""
        copy.copy_blocks(kv, sources, destinations)

    def make_checksum(self, kv: Tensor) -> BlockChecksum:
        """Read each block once."""
        return TritonChecksum(kv)

    def mask_tokens(self, scores: Tensor, masks: Tensor, places: Tensor | None = None) -> None:
        """One launch."""
        masking.mask_tokens(scores, masks, places)

    def sample(self, logits: Tensor, columns: SamplingColumns) -> Sampled:
        """Choose tokens; see `kernels.triton.sampling.sample`."""
        return sample.sample(logits, columns)

    def sample_masked(
        self, logits: Tensor, columns: SamplingColumns, masks: Tensor, places: Tensor
    ) -> Sampled:
        """The kernels of `sample`, which read the masks beside the logits."""
        return sample.sample_masked(logits, columns, masks, places)

    def report_logprobs(self, tokens: Tensor, logits: Tensor, num_logprobs: int) -> Sampled:
        """The kernels of `sample`."""
        return sample.report_logprobs(tokens, logits, num_logprobs)
