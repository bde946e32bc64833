from pathlib import Path
from random import Random

import pytest

from load_tests.__main__ import main
from load_tests.traffic.condense import rank_correlation
from load_tests.traffic.lengths import parse_lengths


def _pairs(count: int) -> list[tuple[int, int]]:
    """Outputs of about twice the input."""
    random = Random(0)
    inputs = [1 + int(random.expovariate(0.01)) for _ in range(count)]
    return [(i, max(1, round(i * random.uniform(1, 3)))) for i in inputs]


def _write(path: Path, pairs: list[tuple[int, int]]) -> None:
    rows = "".join(f"{i},{o}\n" for i, o in pairs)
    path.write_text(f"input_len,output_len\n{rows}")


def test_a_table_keeps_means_and_correlation_of_the_pairs(tmp_path: Path) -> None:
    pairs, table = _pairs(5000), tmp_path / "mine.quantiles.json"
    _write(tmp_path / "pairs.csv", pairs)
    assert main(["lengths", str(tmp_path / "pairs.csv"), "--table", str(table)]) == 0
    lengths, random = parse_lengths(str(table)), Random(1)
    drawn = [lengths.draw(random) for _ in range(5000)]
    for side in (0, 1):
        mean = sum(pair[side] for pair in pairs) / len(pairs)
        assert sum(pair[side] for pair in drawn) / len(drawn) == pytest.approx(mean, rel=0.05)
    assert rank_correlation(drawn) == pytest.approx(rank_correlation(pairs), abs=0.03)


def test_lengths_are_clipped_where_asked(tmp_path: Path) -> None:
    table = tmp_path / "mine.quantiles.json"
    _write(tmp_path / "pairs.csv", _pairs(1500))
    options = ["--table", str(table), "--clip-input", "50", "--clip-output", "60"]
    main(["lengths", str(tmp_path / "pairs.csv"), *options])
    lengths, random = parse_lengths(str(table)), Random(1)
    drawn = [lengths.draw(random) for _ in range(1000)]
    assert max(i for i, _ in drawn) == 50
    assert max(o for _, o in drawn) == 60


def test_rank_correlation_knows_its_extremes() -> None:
    assert rank_correlation([(1, 1), (2, 5), (9, 6)]) == pytest.approx(1)
    assert rank_correlation([(1, 6), (2, 5), (9, 1)]) == pytest.approx(-1)
    assert rank_correlation([(1, 6), (2, 6), (9, 6)]) == 0


@pytest.mark.parametrize(
    ("table", "count", "message"),
    [("a.json", 2000, "must end"), ("a.quantiles.json", 9, "too few")],
)
def test_what_cannot_be_condensed_is_refused(
    table: str, count: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(tmp_path / "pairs.csv", _pairs(count))
    with pytest.raises(SystemExit):
        main(["lengths", str(tmp_path / "pairs.csv"), "--table", str(tmp_path / table)])
    assert message in capsys.readouterr().err
