"""What is written for AMX and AVX-512, with instructions emulated, on any CPU with AVX2."""

import shutil
from pathlib import Path

import pytest
import torch

from kernels.cpu.backend import CpuBackend
from kernels.cpu.build import load_library
from kernels.cpu.library import Library, load_kernels
from kernels.cpu.linear import PackedLinear
from kernels.huge_pages import Arena
from kernels.reference import ReferenceBackend
from tests.kernels.batches import Shape, make_batch, make_layout

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).parent
TILES = f"-O1 -include {FOLDER / 'amx_emulation.h'} -D__AMX_BF16__"
# emulated only where the CPU has none; optimizing that takes the compiler long
WIDE = f"-O0 -include {FOLDER / 'avx512_emulation.h'}"
OPTIONS = {
    "tiles": TILES,
    "tiles and wide pairs": f"-DEMULATES_BF16 {TILES} {WIDE}",
    "wide pairs": f"-DEMULATES_BF16 {WIDE}",
    "wide floats": f"-mno-avx512bf16 {WIDE}",
}
ROWS = [(17, 1), (15, 15), (300, 1), (40, 3), (400, 170)]


@pytest.fixture(scope="module", params=OPTIONS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    plain, wide = load_kernels(torch.bfloat16), load_kernels(torch.float32)
    if plain is None or wide is None or not plain.has_pairs or not shutil.which("gcc"):
        pytest.skip("no C compiler or no AVX2 here")
    folder = tmp_path_factory.mktemp("emulated")
    compiler = folder / "cc"
    compiler.write_text(f'#!/bin/sh\nexec gcc "$@" {OPTIONS[request.param]}\n')
    compiler.chmod(0o755)
    loaded = load_library(("ELEMENT_BF16",), compiler=str(compiler), cache=folder)
    assert loaded is not None
    library = Library(loaded, num_threads=2)
    library.has_tiles = "tiles" in request.param
    return library


@pytest.mark.parametrize("heads", [(6, 2, 80), (9, 3, 64), (20, 1, 64)], ids=str)
@pytest.mark.parametrize("window", [0, 37])
def test_attention(library: Library, heads: tuple[int, int, int], window: int) -> None:
    num_heads, num_kv_heads, head_dim = heads
    torch.manual_seed(0)
    shape = Shape(
        num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=torch.bfloat16
    )
    batch = make_batch(shape, ROWS)
    q = torch.randn(len(batch.layout.positions), num_heads, head_dim).bfloat16()
    own = CpuBackend(torch.bfloat16, {torch.bfloat16: library})

    attended = own.attention(q, batch.kv_layer, batch.layout, 0.2, window=window)

    reference = ReferenceBackend(torch.device("cpu"), torch.bfloat16)
    expected = reference.attention(q, batch.kv_layer, batch.layout, 0.2, window=window)
    torch.testing.assert_close(attended, expected, rtol=1.6e-2, atol=1e-2)


def test_a_token_does_not_depend_on_its_chunk(library: Library) -> None:
    torch.manual_seed(0)
    whole = make_batch(Shape(dtype=torch.bfloat16), [(290, 290)])
    q = torch.randn(290, 6, 64).bfloat16()
    own = CpuBackend(torch.bfloat16, {torch.bfloat16: library})
    attended = own.attention(q, whole.kv_layer, whole.layout, 0.1)
    for start, end in ((0, 37), (37, 38), (38, 150), (289, 290)):
        layout = make_layout(whole.tables, [(end, end - start)], 16)
        chunk = own.attention(q[start:end], whole.kv_layer, layout, 0.1)
        assert torch.equal(chunk, attended[start:end])


def test_products(library: Library) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(49, 160).bfloat16(), torch.randn(49).bfloat16()
    linear = PackedLinear(weight, bias, library, Arena())
    x = torch.randn(70, 160).bfloat16()
    whole = linear(x)
    exact = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(whole, exact.bfloat16(), rtol=1e-2, atol=1e-2)
    for count in (1, 15, 16, 17, 31, 32, 33, 64):
        assert torch.equal(linear(x[:count].contiguous()), whole[:count])
