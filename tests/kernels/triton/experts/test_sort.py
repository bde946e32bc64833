"""Pairs come in the order of their experts and of their tokens, in blocks of few rows."""

import pytest
import torch
import triton.language as tl

from kernels.triton.experts import sort
from kernels.triton.experts.sort import most_blocks, sort_pairs


@pytest.mark.usefixtures("poisoned_outputs")
@pytest.mark.parametrize(
    ("num_rows", "num_all", "held", "chunk"),
    [
        (1, 4, range(4), 64),
        (37, 5, range(5), 64),
        (30, 18, range(18), 2048),
        (70, 5, range(1, 4), 64),
        (37, 9, range(3, 6), 64),
    ],
)
def test_blocks_hold_the_pairs_of_one_expert_in_order(
    num_rows: int,
    num_all: int,
    held: range,
    chunk: int,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(sort, "_CHUNK", chunk)
    monkeypatch.setattr(sort, "_COUNTED", tl.constexpr(2))
    ids = torch.stack([torch.randperm(num_all)[:3] for _ in range(num_rows)])
    # most tokens go to the same expert, as they may
    ids[: num_rows // 2, 0] = held.start
    pairs = sort_pairs(ids.int().to(device), held.start, len(held), rows=16)
    flat = ids.flatten().tolist()
    found: dict[int, list[int]] = {}
    for expert, start, end, _ in pairs.blocks.tolist():
        if expert < 0:
            continue
        assert 0 < end - start <= 16
        found.setdefault(expert, []).extend(pairs.order[start:end].tolist())
    expected = {
        expert - held.start: mine
        for expert in held
        if (mine := [pair for pair, chosen in enumerate(flat) if chosen == expert])
    }
    assert found == expected


def test_the_number_of_blocks_suffices_for_any_choice() -> None:
    for num_pairs in range(1, 200, 7):
        for num_experts in (1, 3, 16):
            # as uneven as can be: one pair each, and the rest to the first
            rest = max(num_pairs - num_experts + 1, 1)
            counts = [rest, *[1] * min(num_experts - 1, num_pairs - 1)]
            needed = sum(-(-count // 16) for count in counts)
            assert most_blocks(num_pairs, num_experts, 16) >= needed
