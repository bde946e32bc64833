"""Names of Gluon in Triton 3.9, for Triton 3.6 to 3.8 too."""

import triton
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

aggregate = getattr(triton, "aggregate", None) or triton.language.core._aggregate
async_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
if not hasattr(gl.shared_memory_descriptor, "reinterpret"):
    gl.shared_memory_descriptor.reinterpret = gl.shared_memory_descriptor._reinterpret
