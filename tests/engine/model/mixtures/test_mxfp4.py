"""Packed numbers are what the format says, for every four bits and for scales of any size."""

import torch

from engine.model.mixtures.mxfp4 import unpack_mxfp4


def test_all_sixteen_numbers_come_in_the_order_of_their_halves() -> None:
    blocks = torch.tensor([[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] * 2], dtype=torch.uint8)
    scales = torch.tensor([128], dtype=torch.uint8)
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    numbers = [2 * number for number in (*positive, *(-n for n in positive))]
    assert unpack_mxfp4(blocks, scales, torch.float32).tolist() == numbers * 2


def test_each_group_has_its_scale_and_place() -> None:
    blocks = torch.full((3, 2, 16), 0x22, dtype=torch.uint8)
    scales = torch.tensor([[127, 130], [120, 1], [0, 200]], dtype=torch.uint8)
    numbers = unpack_mxfp4(blocks, scales, torch.bfloat16)
    assert numbers.shape == (3, 64)
    assert torch.equal(numbers[:, ::32].double(), 2.0 ** (scales.double() - 127))
    assert torch.equal(numbers[:, 31::32], numbers[:, ::32])
