from pathlib import Path
from random import Random

import pytest

from load_tests.traffic.lengths import FixedLengths, JointLengths, parse_lengths

# outputs of short inputs are short
JOINT = JointLengths(
    percentiles=(0, 50, 100),
    input_quantiles=(1, 5, 9),
    groups=(0, 50),
    output_quantiles=((1, 2, 3), (10, 20, 30)),
    max_total_len=39,
)


def test_outputs_are_drawn_from_the_group_of_the_input() -> None:
    random = Random(0)
    pairs = [JOINT.draw(random) for _ in range(2000)]
    assert {o for i, o in pairs if i < 5} == {1, 2, 3}
    assert {o for i, o in pairs if i > 5} == set(range(10, 31))
    assert {i for i, _ in pairs} == set(range(1, 10))
    assert (9, 30) not in pairs


@pytest.mark.parametrize(
    ("name", "input_mean", "output_mean"),
    [("sharegpt", 161.3, 338.0), ("alpaca", 18.95, 58.92), ("chat", 790.1, 438.7)],
)
def test_data_sets_have_the_means_of_the_recorded_pairs(
    name: str, input_mean: float, output_mean: float
) -> None:
    lengths, random = parse_lengths(name), Random(0)
    pairs = [lengths.draw(random) for _ in range(20_000)]
    assert sum(i for i, _ in pairs) / len(pairs) == pytest.approx(input_mean, rel=0.03)
    assert sum(o for _, o in pairs) / len(pairs) == pytest.approx(output_mean, rel=0.03)
    assert all(i + o < 2048 and i > 0 and o > 0 for i, o in pairs)


def test_max_total_len_bounds_drawn_pairs() -> None:
    lengths, random = parse_lengths("sharegpt", 256), Random(0)
    assert all(sum(lengths.draw(random)) < 256 for _ in range(1000))


def test_fixed_lengths_are_read() -> None:
    assert parse_lengths("fixed:128:64") == FixedLengths(128, 64)


def test_pairs_of_a_file_keep_together_and_below_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("input_len,output_len\n10,20\n30,40\n2000,100\n")
    lengths, random = parse_lengths(str(path)), Random(0)
    assert {lengths.draw(random) for _ in range(100)} == {(10, 20), (30, 40)}


@pytest.mark.parametrize("text", ["fixed:1", "fixed:0:5", "fixed:a:b", "fixed:1:-2", "nothing.csv"])
def test_unusable_lengths_are_named(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse_lengths(text)


def test_a_limit_too_small_to_draw_below_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        parse_lengths("alpaca", 5)


def test_a_table_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.quantiles.json"
    path.write_text('{"input": [1, 2]}')
    with pytest.raises(ValueError, match="no table of lengths"):
        parse_lengths(str(path))
