import pytest

from load_tests.traffic.latencies import Objective
from load_tests.whatif.slo import parse_slo, size


def test_a_limit_that_is_not_named_does_not_bind() -> None:
    assert parse_slo("tpot=0.1") == Objective(ttft_s=float("inf"), tpot_s=0.1)
    assert parse_slo("ttft=2,tpot=0.1") == Objective(ttft_s=2.0, tpot_s=0.1)


@pytest.mark.parametrize("needed", [1, 2, 3, 7, 8, 13])
def test_the_fewest_replicas_are_found(needed: int) -> None:
    found = size(lambda count: 1.0 if count >= needed else 0.5, 0.99, most=13)
    assert found.num_replicas == needed
    assert list(found.good_shares) == sorted(found.good_shares)
    assert needed == 1 or found.good_shares[needed - 1] == 0.5


def test_a_level_that_no_number_keeps_is_reported() -> None:
    found = size(lambda count: 0.5, 0.99, most=6)
    assert found.num_replicas is None
    assert list(found.good_shares) == [1, 2, 4, 6]
