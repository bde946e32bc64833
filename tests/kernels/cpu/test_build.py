"""Compiling: cached by content, and never fatal."""

import logging
import shutil
from pathlib import Path

import pytest
import torch

from kernels.cpu import backend, build
from kernels.cpu.backend import CpuBackend, PackedBackend
from kernels.select import select_backend

# without optimization, whatever was asked for
QUICKLY = 'exec gcc "$@" -O0'
needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc here")


def write_compiler(folder: Path, script: str) -> str:
    path = folder / "cc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@needs_compiler
def test_a_second_load_compiles_nothing(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    compiler = write_compiler(tmp_path, f"echo call >> {calls}; {QUICKLY}")
    for _ in range(2):
        library = build.load_library((), compiler=compiler, cache=tmp_path / "cache")
        assert library is not None
    assert calls.read_text() == "call\n"
    assert [path.suffix for path in sorted((tmp_path / "cache").iterdir())] == [".so", ""]


@needs_compiler
def test_other_definitions_are_another_library(tmp_path: Path) -> None:
    compiler = write_compiler(tmp_path, QUICKLY)
    for definitions in ((), ("ELEMENT_BF16",)):
        library = build.load_library(definitions, compiler=compiler, cache=tmp_path / "cache")
        assert library is not None
    assert len(list(tmp_path.glob("cache/*.so"))) == 2


@pytest.mark.parametrize("script", ["echo broken >&2; exit 1", "exit 0"])
def test_a_compiler_that_fails_is_one_warning(
    script: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = write_compiler(tmp_path, script)
    with caplog.at_level(logging.WARNING):
        assert build.load_library((), compiler=compiler, cache=tmp_path / "cache") is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert not list((tmp_path / "cache").glob("*.so"))


def test_a_missing_compiler_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert build.load_library((), compiler="no-such-compiler", cache=tmp_path) is None
    assert "no-such-compiler" in caplog.text


@needs_compiler
def test_a_damaged_library_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    compiler = write_compiler(tmp_path, 'for last in "$@"; do :; done; echo junk > "$last"')
    assert build.load_library((), compiler=compiler, cache=tmp_path / "cache") is None
    assert "cpu_kernels_unavailable" in caplog.text


def test_without_kernels_the_backend_is_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "load_kernels", lambda _: None)
    fallback = select_backend("cpu", torch.bfloat16, compiled=True)
    assert type(fallback) is PackedBackend
    x, weight = torch.randn(3, 64).bfloat16(), torch.randn(5, 64).bfloat16()
    expected = (x.double() @ weight.double().T).bfloat16()
    torch.testing.assert_close(
        fallback.make_linear(weight, None)(x), expected, rtol=1e-2, atol=1e-2
    )


def test_selection() -> None:
    assert not isinstance(select_backend("cpu", torch.bfloat16, compiled=False), CpuBackend)
    assert not isinstance(select_backend("cpu", torch.float16, compiled=True), CpuBackend)
    assert select_backend("cpu", torch.float32, compiled=True).dtype == torch.float32


def test_no_place_for_a_cache_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert build.load_library((), cache=blocked / "cache") is None
    assert "cpu_kernels_unavailable" in caplog.text
