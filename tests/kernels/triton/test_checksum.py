"""Checksums are those of the twin, which every rank and every start agree on."""

import pytest
import torch

from kernels.checksum import Checksum
from kernels.triton.checksum import TritonChecksum


@pytest.mark.parametrize("shape", [(1, 2), (3, 2, 7), (2, 5000), (2, 2, 8192), (20001,)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_checksums_equal_the_twin(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    poisoned_outputs: None,
) -> None:
    shape = (*shape[:-1], shape[-1] * (4 // dtype.itemsize))
    kv = torch.randn(6, *shape, device=device).to(dtype)
    # every bit of a word counts
    kv[2].view(torch.int32).fill_(-1)
    blocks = torch.tensor([5, 2, 2, 0, 4], device=device)
    assert torch.equal(TritonChecksum(kv)(blocks), Checksum(kv)(blocks))


def test_no_block_has_no_checksum(device: torch.device) -> None:
    kv = torch.randn(2, 4, device=device)
    assert not len(TritonChecksum(kv)(torch.empty(0, dtype=torch.int64, device=device)))
