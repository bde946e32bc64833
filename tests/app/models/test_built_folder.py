from pathlib import Path

import pytest

from app.models.built_folder import build_once, check_disk_space
from engine.errors import ConfigError


class Builder:
    def __init__(self, text: str = "x") -> None:
        self.calls = 0
        self.text = text

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        (folder / "file").write_text(self.text)


def test_it_is_built_once_and_again_when_its_source_changed(tmp_path: Path) -> None:
    first, second = Builder("1"), Builder("2")
    for _ in range(2):
        folder = build_once(tmp_path / "models" / "m", "a", first)
        assert (folder / "file").read_text() == "1"
    build_once(folder, "b", second)
    assert ((folder / "file").read_text(), first.calls, second.calls) == ("2", 1, 1)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["m", "m.lock"]


def test_what_an_ended_process_left_behind_is_never_used(tmp_path: Path) -> None:
    partial = tmp_path / "m.partial"
    partial.mkdir()
    (partial / "leftover").touch()
    # as if the process had ended between the two moves
    (tmp_path / "m.old").mkdir()
    folder = build_once(tmp_path / "m", "a", Builder())
    assert sorted(path.name for path in folder.iterdir()) == ["file", "manifest.json"]
    assert not partial.exists()
    assert not (tmp_path / "m.old").exists()


def test_a_build_that_fails_leaves_nothing_and_the_old_folder_in_use(tmp_path: Path) -> None:
    folder = build_once(tmp_path / "m", "a", Builder())

    def fail(target: Path) -> None:
        (target / "half").touch()
        raise ConfigError("no")

    with pytest.raises(ConfigError):
        build_once(folder, "b", fail)
    assert (folder / "file").exists()
    assert not (tmp_path / "m.partial").exists()


def test_a_damaged_folder_is_built_again(tmp_path: Path) -> None:
    builder = Builder()
    folder = build_once(tmp_path / "m", "a", builder)
    (folder / "file").write_text("longer")
    build_once(folder, "a", builder)
    assert ((folder / "file").read_text(), builder.calls) == ("x", 2)


def test_a_full_disk_is_noticed_before(tmp_path: Path) -> None:
    check_disk_space(tmp_path, 1)
    with pytest.raises(ConfigError, match=r"needs 1000000000\.00 GB in .* set cache_folder"):
        check_disk_space(tmp_path, 10**18)
