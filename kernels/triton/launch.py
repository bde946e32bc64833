"""How kernels are launched: what all launchers have in common."""

import functools

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# rows up to which norms and rope let the next kernel in early, see `let_next_start`
_FEW_ROWS = 8


@functools.cache
def overlap(device: torch.device) -> dict[str, bool]:
    """Launch options for programmatic dependent launch, where the device has it (Hopper on).

    A kernel launched so may start before its predecessor has ended, so it must call
    `wait_for_inputs` before it touches memory.

    Returns:
        Keyword arguments of a launch, the kernel's own constant OVERLAPPED among them.
    """
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9:
        return {"OVERLAPPED": True, "launch_pdl": True}
    return {"OVERLAPPED": False}


def are_few(num_rows: int) -> bool:
    """Whether a kernel with a program or two for each row occupies few multiprocessors."""
    return num_rows <= _FEW_ROWS


@functools.cache
def num_sms(device: torch.device) -> int:
    """Multiprocessors of a device; in the interpreter 2, enough to split work between."""
    if device.type == "cpu":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.cache
def shared_bytes(device: torch.device) -> int:
    """Shared memory that a program may take; in the interpreter that of Hopper."""
    if device.type == "cpu":
        return 227 << 10
    # every program's first KiB is the system's
    return torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor - 1024


@triton.jit
def wait_for_inputs(OVERLAPPED: tl.constexpr):
    """Wait until all that earlier kernels wrote is visible."""
    if OVERLAPPED:
        gdc_wait()


@triton.jit
def let_next_start(OVERLAPPED: tl.constexpr, HAS_FEW_ROWS: tl.constexpr):
    """Let the next kernel's programs take their places if this one has few rows.

    To be called after `wait_for_inputs`: the others wait in turn until this kernel has ended. It
    pays where this one leaves them room: a step of Llama-3-8B on an H200 takes 4.20 ms instead of
    4.22 at batch 1, 4.33 instead of 4.38 at 4, as long at 8, but 4.79 instead of 4.65 at 16, whose
    products find multiprocessors taken and gather on the others.
    """
    if OVERLAPPED and HAS_FEW_ROWS:
        gdc_launch_dependents()
