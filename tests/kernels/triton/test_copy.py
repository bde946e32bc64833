"""Blocks are copied whole."""

import pytest
import torch

from kernels.triton.copy import copy_blocks


@pytest.mark.parametrize("block", [(1,), (3, 7, 5), (2, 2, 2, 16, 80), (9000,)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_blocks_are_copied_and_no_other_is_touched(
    block: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    kv = torch.randn(6, *block, device=device).half()
    expected = kv.clone()
    expected[[4, 0, 3]] = kv[[1, 5, 5]]
    sources, destinations = torch.tensor([[1, 5, 5], [4, 0, 3]], dtype=dtype, device=device)
    copy_blocks(kv, sources, destinations)
    assert torch.equal(kv, expected)


def test_nothing_to_copy_is_no_work(device: torch.device) -> None:
    kv = torch.randn(2, 3, device=device)
    none = torch.empty(0, dtype=torch.int64, device=device)
    copy_blocks(kv, none, none)


@pytest.mark.gpu
def test_blocks_beyond_two_to_the_31_elements(device: torch.device) -> None:
    kv = torch.zeros(2**11 + 3, 2**20, dtype=torch.float16, device=device)
    kv[-1] = 1
    copy_blocks(
        kv, torch.tensor([2**11 + 2], device=device), torch.tensor([2**11 + 1], device=device)
    )
    assert kv[-2].eq(1).all()
    assert not kv[:-2].any()
