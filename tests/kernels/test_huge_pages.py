"""Tensors in an arena: apart, aligned, and of any size."""

import torch

from kernels.huge_pages import Arena


def test_tensors_of_an_arena_are_aligned_and_do_not_overlap() -> None:
    arena = Arena()
    sizes = [1, 31, 64, 1 << 20, 33 << 20, 5]
    tensors = [arena.empty(size, torch.bfloat16) for size in sizes]
    for index, tensor in enumerate(tensors):
        assert tensor.data_ptr() % 64 == 0
        tensor.fill_(index)
    for index, (size, tensor) in enumerate(zip(sizes, tensors, strict=True)):
        assert tensor.shape == (size,)
        assert bool((tensor == index).all())
