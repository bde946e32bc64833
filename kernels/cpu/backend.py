"""The CPU backend: C kernels called by address, and packed linear layers.

A decode step of a small model makes hundreds of calls of a few microseconds each, so the calls do
no more than allocate their output and pass addresses.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.backend import Layers, Linear
from kernels.batch import BatchLayout, Sampled, SamplingColumns
from kernels.cpu import sampling
from kernels.cpu.layout_addresses import LayoutAddresses
from kernels.cpu.library import Library, load_kernels
from kernels.cpu.linear import PackedLinear, can_pack, make_cpu_linear, multiplies
from kernels.cpu.recorded_steps import RecordedSteps
from kernels.huge_pages import Arena
from kernels.reference import ReferenceBackend


class PackedBackend(ReferenceBackend):
    """Plain torch with packed linear layers: the fallback without a C compiler."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(torch.device("cpu"), dtype)

    def make_linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """Pack the weight; the packed copy is the only one kept."""
        return make_cpu_linear(weight, bias, None)


class CpuBackend(PackedBackend):
    """`kernels.backend.KernelBackend` with C kernels; contracts are documented there.

    Tensors are contiguous but for `kv_layer`, whose blocks may lie apart.
    """

    def __init__(self, dtype: torch.dtype, kernels: dict[torch.dtype, Library]) -> None:
        """Use `kernels` of the backend's dtype, and for logits those of float32 too."""
        super().__init__(dtype)
        self._all_kernels = kernels
        self._kernels = kernels[dtype]
        self._steps = RecordedSteps(self._kernels)
        self._arena = Arena()
        self._layout: BatchLayout | None = None
        self._addresses = LayoutAddresses(0, 0, 0, 0, 0, 0, 0)

    @property
    def has_threads(self) -> bool:
        """Whether kernels share their work with threads of their own."""
        return self._kernels.num_threads > 1

    def make_linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """Pack the weight; the packed copy is the only one kept."""
        return make_cpu_linear(weight, bias, self._kernels, self._arena)

    def make_head(self, weight: Tensor) -> Linear:
        """Pack the weight as it is, where sums in float32 can be had."""
        if can_pack(weight, self._kernels):
            return PackedLinear(weight, None, self._kernels, self._arena, out_dtype=torch.float32)
        return super().make_head(weight)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Normalise in float32 and round once."""
        assert x.is_contiguous()
        out = torch.empty_like(x)
        self._kernels.rms_norm(
            out.data_ptr(),
            x.data_ptr(),
            weight.data_ptr(),
            *x.shape,
            eps,
            weight.dtype is not self.dtype,
        )
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add to `residual` in place, round, normalise."""
        assert x.is_contiguous()
        assert residual.is_contiguous()
        out = torch.empty_like(x)
        self._kernels.add_rms_norm(
            out.data_ptr(),
            residual.data_ptr(),
            x.data_ptr(),
            weight.data_ptr(),
            *x.shape,
            eps,
            weight.dtype is not self.dtype,
        )
        return out

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """Normalise in float32 and round once."""
        assert x.is_contiguous()
        out = torch.empty_like(x)
        self._kernels.layer_norm(
            out.data_ptr(), x.data_ptr(), weight.data_ptr(), bias.data_ptr(), *x.shape, eps
        )
        return out

    def add_layer_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float
    ) -> Tensor:
        """Add to `residual` in place, round, normalise."""
        assert x.is_contiguous()
        assert residual.is_contiguous()
        out = torch.empty_like(x)
        self._kernels.add_layer_norm(
            out.data_ptr(),
            residual.data_ptr(),
            x.data_ptr(),
            weight.data_ptr(),
            bias.data_ptr(),
            *x.shape,
            eps,
        )
        return out

    def rope_write(
        self, qkv: Tensor, cos_sin: Tensor, kv_layer: Tensor, layout: BatchLayout
    ) -> Tensor:
        """Rotate in float32; tokens with slot -1 are not written."""
        _, _, num_kv_heads, block_size, head_dim = kv_layer.shape
        num_tokens, width = qkv.shape
        num_heads = width // head_dim - 2 * num_kv_heads
        assert qkv.is_contiguous()
        assert cos_sin.dtype == torch.float32
        addresses = self._addresses_of(layout)
        q = torch.empty(num_tokens, num_heads, head_dim, dtype=self.dtype)
        self._kernels.rope_write(
            q.data_ptr(),
            kv_layer.data_ptr(),
            qkv.data_ptr(),
            cos_sin.data_ptr(),
            addresses.positions,
            addresses.slot_mapping,
            num_tokens,
            num_heads,
            num_kv_heads,
            head_dim,
            block_size,
            kv_layer.stride(0),
        )
        return q

    def kv_write(self, qkv: Tensor, kv_layer: Tensor, layout: BatchLayout) -> Tensor:
        """Write as it is; tokens with slot -1 are not written."""
        _, _, num_kv_heads, block_size, head_dim = kv_layer.shape
        num_tokens, width = qkv.shape
        num_heads = width // head_dim - 2 * num_kv_heads
        assert qkv.is_contiguous()
        q = torch.empty(num_tokens, num_heads, head_dim, dtype=self.dtype)
        self._kernels.kv_write(
            q.data_ptr(),
            kv_layer.data_ptr(),
            qkv.data_ptr(),
            self._addresses_of(layout).slot_mapping,
            num_tokens,
            num_heads,
            num_kv_heads,
            head_dim,
            block_size,
            kv_layer.stride(0),
        )
        return q

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
        _, _, num_kv_heads, block_size, head_dim = kv_layer.shape
        num_heads = len(gains) - num_kv_heads
        assert qkv.is_contiguous()
        assert gains.is_contiguous()
        addresses = self._addresses_of(layout)
        q = torch.empty(len(qkv), num_heads, head_dim, dtype=self.dtype)
        self._kernels.norm_rope_write(
            q.data_ptr(),
            kv_layer.data_ptr(),
            qkv.data_ptr(),
            gains.data_ptr(),
            0 if cos_sin is None else cos_sin.data_ptr(),
            0 if means is None else means.data_ptr(),
            addresses.positions,
            addresses.slot_mapping,
            len(qkv),
            num_heads,
            num_kv_heads,
            head_dim,
            block_size,
            kv_layer.stride(0),
            eps,
            gains.dtype is not self.dtype,
        )
        return q

    def mean_squares(self, x: Tensor, first: int, second: int) -> Tensor:
        """Sum in float32."""
        assert x.is_contiguous()
        means = torch.empty(len(x), 2, dtype=torch.float32)
        self._kernels.mean_squares(means.data_ptr(), x.data_ptr(), *x.shape, first, second)
        return means

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
        """Read keys and values in place, block by block."""
        _, _, num_kv_heads, block_size, head_dim = kv_layer.shape
        num_tokens, num_heads, _ = q.shape
        assert q.is_contiguous()
        assert sinks is None or (sinks.dtype == torch.float32 and sinks.is_contiguous())
        addresses = self._addresses_of(layout)
        out = torch.empty(num_tokens, num_heads * head_dim, dtype=self.dtype)
        status = self._kernels.attention(
            out.data_ptr(),
            q.data_ptr(),
            kv_layer.data_ptr(),
            addresses.block_tables,
            addresses.context_lens,
            addresses.query_starts,
            addresses.num_rows,
            addresses.max_blocks,
            num_heads,
            num_kv_heads,
            head_dim,
            block_size,
            kv_layer.stride(0),
            scale,
            softcap,
            self._kernels.has_tiles,
            window,
            0 if sinks is None else sinks.data_ptr(),
        )
        if status:
            raise MemoryError("no memory for the scores of attention")
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """Compute in float32 and round once."""
        return self._gated(self._kernels.silu_mul, gate_up)

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        """Compute in float32 and round once."""
        return self._gated(self._kernels.gelu_mul, gate_up)

    def gelu(self, x: Tensor) -> Tensor:
        """Compute in float32 and round once."""
        assert x.is_contiguous()
        out = torch.empty_like(x)
        self._kernels.gelu(out.data_ptr(), x.data_ptr(), *x.shape)
        return out

    def run_layers(self, layers: Layers, x: Tensor, kv: Tensor, layout: BatchLayout) -> Tensor:
        """Repeat the calls of an earlier step of the same shape, where there was one."""
        return self._steps.run(layers, x, kv, layout)

    def sample(self, logits: Tensor, columns: SamplingColumns) -> Sampled:
        """Choose tokens; rows with filters cost a pass more."""
        return sampling.sample(self._all_kernels, logits, columns)

    def _gated(self, kernel: Callable[..., int], gate_up: Tensor) -> Tensor:
        assert gate_up.is_contiguous()
        num_tokens, width = gate_up.shape
        out = torch.empty(num_tokens, width // 2, dtype=self.dtype)
        kernel(out.data_ptr(), gate_up.data_ptr(), num_tokens, width // 2)
        return out

    def _addresses_of(self, layout: BatchLayout) -> LayoutAddresses:
        """Check a layout once; every layer of a step passes the same one."""
        if layout is not self._layout:
            self._addresses = LayoutAddresses.of(layout)
            self._layout = layout
        return self._addresses


def load_cpu_backend(dtype: torch.dtype, *, num_threads: int = 1) -> PackedBackend:
    """Compile and load the C kernels of `dtype`, float32 or bfloat16, or fall back to torch.

    They have threads of their own where they do all the work of a step. Elsewhere torch does the
    products, with threads that wait awake: others beside them would wait for their cores.
    """
    plain = load_kernels(dtype)
    if plain is None:
        return PackedBackend(dtype)
    kernels = {}
    for element in {dtype, torch.float32}:
        used = num_threads if multiplies(plain, dtype) else 1
        library = load_kernels(element, num_threads=used)
        if library is None:
            return PackedBackend(dtype)
        kernels[element] = library
    return CpuBackend(dtype, kernels)
