from pathlib import Path
from random import Random

from load_tests.paper.experiments.workloads import content, lengths


def test_prompts_of_the_translations_begin_with_their_examples(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("input_len,output_len\n9,7\n")
    files = {"translation": str(tmp_path / "pairs.csv")}
    assert lengths("translation_1", files).draw(Random(0)) == (80 + 9, 7)
    assert lengths("translation_5", files).draw(Random(0)) == (341 + 9, 7)


def test_lengths_are_named_by_the_content_of_their_file(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("input_len,output_len\n9,7\n")
    files = {"alpaca": str(tmp_path / "pairs.csv")}
    first = content("alpaca", files)
    (tmp_path / "pairs.csv").write_text("input_len,output_len\n9,8\n")
    assert len({first, content("alpaca", files), content("alpaca", {})}) == 3
    assert content("translation_1", {}) == ""
