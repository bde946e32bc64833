import pytest

from load_tests.card import datasheet


def test_cards_are_known_by_the_name_torch_gives() -> None:
    assert datasheet("NVIDIA H100 80GB HBM3").bytes_per_s == 3.35e12
    with pytest.raises(ValueError, match=r"load_tests/card\.py"):
        datasheet("NVIDIA T4")


def test_several_cards_do_as_much_in_a_share_of_the_time() -> None:
    one = datasheet("NVIDIA H200")
    assert one.of_cards(4).floor_s(1e12, 1e15) == pytest.approx(one.floor_s(1e12, 1e15) / 4)
