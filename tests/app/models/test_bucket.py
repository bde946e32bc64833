import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from app.models.bucket import fetch, is_url
from engine.errors import ConfigError

URL = "store://bucket/models/Llama"


class Store(MemoryFileSystem):  # type: ignore[misc]
    """A bucket that lists what was read of it, and can be out of reach."""

    protocol = "store"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    read: ClassVar[list[str]] = []
    is_down = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("store:/")))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        if Store.is_down:
            raise ConnectionError("no route to the store")
        return super().ls(path, detail=detail, **kwargs)

    def get_file(self, rpath: str, lpath: str, **kwargs: Any) -> None:
        Store.read.append(rpath.rpartition("/")[2])
        super().get_file(rpath, lpath, **kwargs)


@pytest.fixture(autouse=True)
def store() -> Any:
    fsspec.register_implementation("store", Store, clobber=True)
    Store.store.clear()
    Store.read.clear()
    Store.is_down = False
    made = fsspec.filesystem("store")
    for name in ("config.json", "model.safetensors", "run_me.py", "sub/config.json"):
        made.pipe_file(f"/bucket/models/Llama/{name}", name.encode())
    return made


def get(cache: Path, *suffixes: str) -> Path:
    return fetch(URL, cache, lambda name: name.endswith(suffixes), "+".join(suffixes))


def test_urls_are_known_from_folders_and_hub_ids() -> None:
    assert is_url("gs://bucket/model")
    assert not is_url("org/model")
    assert not is_url("/models/gs:/x")


def test_only_the_wanted_files_are_fetched_and_each_once(tmp_path: Path) -> None:
    folder = get(tmp_path, ".json")
    assert folder.name.startswith("Llama-")
    assert Store.read == ["config.json"]
    assert get(tmp_path, ".json", ".safetensors") == folder
    assert Store.read == ["config.json", "model.safetensors"]
    assert (folder / "model.safetensors").read_text() == "model.safetensors"
    assert not (folder / "run_me.py").exists()


def test_processes_that_ask_at_once_fetch_once(tmp_path: Path) -> None:
    all_are_there = threading.Barrier(8)

    def ask(_: int) -> Path:
        all_are_there.wait()
        return get(tmp_path, ".json", ".safetensors")

    with ThreadPoolExecutor(8) as threads:
        folders = list(threads.map(ask, range(8)))
    assert len(set(folders)) == 1
    assert sorted(Store.read) == ["config.json", "model.safetensors"]


def test_an_object_that_changed_is_fetched_again_and_the_old_file_stays_whole(
    tmp_path: Path, store: Any
) -> None:
    folder = get(tmp_path, ".json", ".safetensors")
    with (folder / "model.safetensors").open() as in_use:
        store.pipe_file("/bucket/models/Llama/model.safetensors", b"changed, and longer")
        get(tmp_path, ".json", ".safetensors")
        assert in_use.read() == "model.safetensors"
    assert (folder / "model.safetensors").read_text() == "changed, and longer"
    assert Store.read.count("config.json") == 1


def test_a_complete_copy_serves_without_the_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = get(tmp_path, ".json")
    Store.is_down = True
    with caplog.at_level(logging.WARNING):
        assert get(tmp_path, ".json") == folder
    assert "model_not_checked url=store://bucket/models/Llama" in caplog.text
    with pytest.raises(ConfigError, match="no route to the store; check the address"):
        get(tmp_path, ".json", ".safetensors")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("store://bucket/none", "cannot be fetched"),
        ("store://bucket/models", "there is no config.json in store://bucket/models"),
        ("nonesuch://bucket/model", "nonesuch"),
    ],
)
def test_what_cannot_be_fetched_is_one_clear_message(
    url: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        fetch(url, tmp_path, lambda name: True, "all")


def test_a_store_whose_library_is_missing_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_library(url: str) -> None:
        raise ImportError("Please install gcsfs to access Google Storage")

    monkeypatch.setattr(fsspec.core, "url_to_fs", without_library)
    with pytest.raises(ConfigError, match=r"install gcsfs .*; for gs:// install pagoda\[gcp\]"):
        fetch("gs://bucket/model", tmp_path, lambda name: True, "all")
