from pathlib import Path

from app.models.manifest import FILE_NAME, damaged_files, write_manifest


def write(folder: Path) -> None:
    (folder / "a").write_text("one")
    (folder / "b").write_text("two")
    write_manifest(folder, source="test")


def test_an_untouched_folder_has_no_damage(tmp_path: Path) -> None:
    write(tmp_path)
    assert damaged_files(tmp_path) == damaged_files(tmp_path, full=True) == []


def test_a_file_that_is_gone_or_has_another_size_is_seen_at_once(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "a").unlink()
    (tmp_path / "b").write_text("three")
    assert damaged_files(tmp_path) == ["a", "b"]


def test_a_changed_byte_is_seen_by_the_full_comparison(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "b").write_text("twO")
    assert damaged_files(tmp_path) == []
    assert damaged_files(tmp_path, full=True) == ["b"]


def test_an_unreadable_manifest_is_damage(tmp_path: Path) -> None:
    assert damaged_files(tmp_path) == [FILE_NAME]
    for text in ("", "[]", "{}", '{"files": 3}'):
        (tmp_path / FILE_NAME).write_text(text)
        assert damaged_files(tmp_path) == [FILE_NAME], text
