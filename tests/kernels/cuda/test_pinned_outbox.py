"""What the host sends beside the device's work arrives when it is to be read."""

import pytest
import torch

from kernels.cuda.pinned_outbox import PinnedOutbox

pytestmark = pytest.mark.gpu


def test_each_reader_finds_what_was_sent_for_it() -> None:
    """However long readers take, and though the same memory is filled again."""
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    target = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")
    outbox = PinnedOutbox(target)
    slow = torch.randn(4096, 4096, device="cuda")
    found = []
    for number in range(1, 9):
        outbox.wait()
        outbox.host[:number] = number
        outbox.send(number)
        for _ in range(4):
            slow = slow @ slow.T
        found.append(target.clone())
        outbox.taken()
    for number, values in enumerate(found, start=1):
        assert values[:number].tolist() == [number] * number
        assert not values[number:].any()
