"""Compile the prefill kernel for Hopper, where no GPU is needed, and look at what came out."""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from kernels.triton.attention.hopper import prefill

SHARED_BYTES = 227 << 10


def main() -> None:
    """Compile for one group and for two, and for what is extreme of heads and blocks.

    Raises:
        AssertionError: a kernel needs more memory than there is, or computes a tile's softmax
            behind the wait for the product that should run beside it.
    """
    for case in ((1, 1, 64, 16), (1, 4, 128, 16), (2, 4, 128, 16), (2, 64, 128, 128)):
        compiled = compile_kernel(*case)
        assert compiled.metadata.shared <= SHARED_BYTES, case
        for loop in compiled.asm["sass"].split("WARPGROUP.DEPBAR.LE gsb0, 0x1")[1:]:
            assert "MUFU.EX2" in loop.split("WARPGROUP.DEPBAR.LE gsb0, 0x0")[0], case


def compile_kernel(num_groups: int, packed: int, head_dim: int, piece_len: int) -> CompiledKernel:
    """Compile for bfloat16, two key heads and blocks of `piece_len`."""
    kernel = prefill._hopper_prefill_kernel
    constants = {
        "HEADS": 2 * packed,
        "KV_HEADS": 2,
        "PACKED": packed,
        "BLOCK_SIZE": piece_len,
        "DIM": head_dim,
        "TILE": prefill._KEYS,
        "STAGES": prefill._NUM_STAGES,
        "GROUPS": num_groups,
    }
    types = {
        "out": "*bf16",
        "q": boxes(64 // packed, packed, 64),
        "pool": boxes(piece_len, 64),
        "block_tables": "*i32",
        "tiles": "*i32",
        "scale": "fp32",
    }
    names = kernel.arg_names
    signature = {
        name: "constexpr" if name in constants else types.get(name, "i32") for name in names
    }
    values = {(names.index(name),): value for name, value in constants.items()}
    return triton.compile(
        GluonASTSource(kernel, signature, values),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": 4},
    )


def boxes(*shape: int) -> str:
    """The type of a tensor read by boxes of this shape."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=len(shape))
    return f"tensordesc<bf16{list(shape)},{layout!r}>"


if __name__ == "__main__":
    main()
