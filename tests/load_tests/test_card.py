import pytest

from load_tests.card import datasheet


def test_cards_are_known_by_the_name_torch_gives() -> None:
    assert datasheet("NVIDIA H100 80GB HBM3").bytes_per_s == 3.35e12
    with pytest.raises(ValueError, match=r"load_tests/card\.py"):
        datasheet("NVIDIA T4")
