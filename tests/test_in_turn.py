from itertools import combinations, product

import pytest

from tests.in_turn import is_left_out


@pytest.mark.parametrize("sizes", [(2, 2), (3, 2), (2, 3, 2), (3, 3, 3), (2, 2, 4, 5)])
def test_half_is_tried_and_each_value_and_of_three_parameters_each_pair(
    sizes: tuple[int, ...],
) -> None:
    every = list(product(*map(range, sizes)))
    tried = [indices for indices in every if not is_left_out(indices)]
    assert abs(2 * len(tried) - len(every)) <= 1
    for at, size in enumerate(sizes):
        assert {indices[at] for indices in tried} == set(range(size))
    for one, other in combinations(range(len(sizes)), 2) if len(sizes) > 2 else ():
        met = {(indices[one], indices[other]) for indices in tried}
        assert len(met) == sizes[one] * sizes[other]


def test_a_single_parameter_is_not_halved() -> None:
    with pytest.raises(AssertionError, match="single"):
        is_left_out([1])


@pytest.mark.in_turn
@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 1)])
@pytest.mark.parametrize("third", [0, 1, pytest.param(2, marks=pytest.mark.slow), 3])
def test_values_that_are_given_together_have_one_place_and_slow_ones_none(
    request: pytest.FixtureRequest, first: int, second: int, third: int
) -> None:
    assert first == second
    is_slow = request.node.get_closest_marker("slow") is not None
    assert is_slow == (third == 2 or bool((first + min(third, 2)) % 2))


@pytest.mark.in_turn
@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("second", [0, 1])
def test_the_other_half_is_slow(request: pytest.FixtureRequest, first: int, second: int) -> None:
    is_slow = request.node.get_closest_marker("slow") is not None
    assert is_slow == bool((first + second) % 2)
