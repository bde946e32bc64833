"""What a model folder must hold, and what each rank takes from it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from app.models.checkpoint import check_weights
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.model.dummy import DummySource
from engine.model.loader import load_model
from engine.model.mixtures.mxfp4 import unpack_mxfp4
from engine.model.model import Model
from engine.model.parallel import TensorParallel
from engine.model.safetensors_folder import SafetensorsFolder
from kernels.reference import ReferenceBackend
from tests.engine.model.tiny import TinyModel, save_tiny

Weights = dict[str, Tensor]
_FILE = "model.safetensors"
_DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture
def tiny(tmp_path: Path) -> TinyModel:
    return save_tiny("qwen2", tmp_path)


def _load(config: EngineConfig, parallel: TensorParallel = TensorParallel()) -> Model:  # noqa: B008
    backend = ReferenceBackend(torch.device("cpu"), torch.float32)
    return load_model(config, backend, parallel)


def _edit(tiny: TinyModel, change: Callable[[Weights], object]) -> None:
    path = tiny.folder / _FILE
    weights = load_file(path)
    change(weights)
    save_file(weights, path)


def _split(tiny: TinyModel) -> None:
    """Spread the weights over two files with an index."""
    weights = load_file(tiny.folder / _FILE)
    (tiny.folder / _FILE).unlink()
    homes = {name: f"part-{index % 2}.safetensors" for index, name in enumerate(weights)}
    for file in set(homes.values()):
        save_file({n: w for n, w in weights.items() if homes[n] == file}, tiny.folder / file)
    index = tiny.folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": homes}))


def test_missing_tensor_is_named(tiny: TinyModel) -> None:
    _edit(tiny, lambda weights: weights.pop(_DOWN))
    with pytest.raises(ConfigError, match=rf"{tiny.folder}.*{_DOWN}.*missing"):
        _load(tiny.config())


def test_extra_tensor_is_named_with_its_file(tiny: TinyModel) -> None:
    _edit(tiny, lambda weights: weights.update(surplus=torch.ones(1)))
    with pytest.raises(ConfigError, match=rf"{tiny.folder / _FILE}.*'surplus'.*no place"):
        _load(tiny.config())


def test_misshapen_tensor_is_named_with_both_shapes(tiny: TinyModel) -> None:
    _edit(tiny, lambda weights: weights.update({_DOWN: torch.ones(64, 95)}))
    with pytest.raises(ConfigError, match=rf"{_FILE}.*{_DOWN}.*\(64, 95\).*\(64, 96\)"):
        _load(tiny.config())


def test_redundant_tensors_are_ignored(tiny: TinyModel) -> None:
    names = ("lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq")
    _edit(tiny, lambda weights: weights.update({name: torch.ones(3) for name in names}))
    _load(tiny.config())


def test_damaged_file_is_named(tiny: TinyModel) -> None:
    path = tiny.folder / _FILE
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=str(path)):
        _load(tiny.config())


def test_folder_without_weights_is_refused(tiny: TinyModel) -> None:
    (tiny.folder / _FILE).unlink()
    with pytest.raises(ConfigError, match=f"neither {_FILE} nor"):
        _load(tiny.config())


def test_indexed_file_that_is_absent_is_named(tiny: TinyModel) -> None:
    _split(tiny)
    (tiny.folder / "part-1.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"part-1\.safetensors"):
        _load(tiny.config())


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": 3}', '{"weight_map": {"a": "."}}'])
def test_damaged_index_is_named(tiny: TinyModel, text: str) -> None:
    index = tiny.folder / "model.safetensors.index.json"
    index.write_text(text)
    with pytest.raises(ConfigError, match=str(index)):
        _load(tiny.config())


def test_index_cannot_point_outside_the_folder(tiny: TinyModel) -> None:
    (tiny.folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "../outside.safetensors"}})
    )
    with pytest.raises(ConfigError, match=r"'\.\./outside\.safetensors', which is not a file of"):
        _load(tiny.config())


def test_shards_hold_the_same_model_as_one_file(tiny: TinyModel) -> None:
    progress: list[tuple[int, int]] = []
    _split(tiny)
    source = SafetensorsFolder(tiny.folder, lambda done, total: progress.append((done, total)))
    target = torch.empty(64, 96)
    source.fill(target, _DOWN, (64, 96), dim=0, start=0)
    assert torch.equal(target, dict(tiny.reference.named_parameters())[_DOWN])
    assert _load(tiny.config()).num_kv_heads == 2


def test_progress_grows_to_the_total(tiny: TinyModel) -> None:
    progress: list[tuple[int, int]] = []
    backend = ReferenceBackend(torch.device("cpu"), torch.float32)
    load_model(tiny.config(), backend, TensorParallel(), lambda *step: progress.append(step))
    assert progress == sorted(progress)
    assert progress[-1][0] == progress[-1][1] >= (tiny.folder / _FILE).stat().st_size


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_reads_its_slice_of_rows_and_columns(tiny: TinyModel, rank: int) -> None:
    whole = dict(tiny.reference.named_parameters())[_DOWN]
    source = SafetensorsFolder(tiny.folder, lambda done, total: None)
    rows, columns = torch.empty(32, 96), torch.empty(64, 48)
    source.fill(rows, _DOWN, (64, 96), dim=0, start=rank * 32)
    source.fill(columns, _DOWN, (64, 96), dim=1, start=rank * 48)
    assert torch.equal(rows, whole[rank * 32 : rank * 32 + 32])
    assert torch.equal(columns, whole[:, rank * 48 : rank * 48 + 48])


def test_weights_become_the_dtype_of_the_backend(tiny: TinyModel) -> None:
    source = SafetensorsFolder(tiny.folder, lambda done, total: None)
    target = torch.empty(64, 96, dtype=torch.bfloat16)
    source.fill(target, _DOWN, (64, 96), dim=0, start=0)
    whole = dict(tiny.reference.named_parameters())[_DOWN]
    assert torch.equal(target, whole.bfloat16())


def test_heads_that_cannot_be_split_are_refused(tiny: TinyModel) -> None:
    model = tiny.config().model
    config = tiny.config(model=replace(model, num_heads=3, num_kv_heads=3), load_format="dummy")
    with pytest.raises(ConfigError, match=r"attention heads \(3\).*tensor_parallel_size=2"):
        _load(replace(config, model=replace(config.model, num_kv_heads=1)), TensorParallel(0, 2))
    with pytest.raises(ConfigError, match=r"3 key-value heads.*tensor_parallel_size=2"):
        _load(config, TensorParallel(0, 2))


# as the first checkpoints were published: the bare decoder, with its masks
_OLD_NAMES = {"opt": "model.", "gpt2": "transformer."}


@pytest.mark.parametrize("name", _OLD_NAMES)
def test_both_spellings_of_names_are_read(name: str, tmp_path: Path) -> None:
    tiny = save_tiny(name, tmp_path)
    prefix = _OLD_NAMES[name]
    weights = load_file(tiny.folder / _FILE)
    assert all(stored.startswith((prefix, "lm_head.")) for stored in weights)
    bare = {stored.removeprefix(prefix): weight for stored, weight in weights.items()}
    if name == "gpt2":
        bare |= {"h.0.attn.bias": torch.ones(1, 1, 4, 4), "h.0.attn.masked_bias": torch.ones(())}
    save_file(bare, tiny.folder / _FILE)
    check_weights(tiny.folder, tiny.config().model)
    assert _load(tiny.config()).num_kv_heads == 4


def test_progress_counts_a_tensor_in_sections_once(tmp_path: Path) -> None:
    tiny = save_tiny("gpt2", tmp_path)
    progress: list[tuple[int, int]] = []
    backend = ReferenceBackend(torch.device("cpu"), torch.float32)
    load_model(tiny.config(), backend, TensorParallel(), lambda *step: progress.append(step))
    assert max(done for done, _ in progress) == progress[-1][1]


@pytest.mark.parametrize("name", ["opt", "gpt2", "tied_llama3", "qwen3_moe"])
def test_progress_of_dummy_weights_grows_to_their_bytes(name: str, tmp_path: Path) -> None:
    tiny = save_tiny(name, tmp_path)
    progress: list[tuple[int, int]] = []
    backend = ReferenceBackend(torch.device("cpu"), torch.float32)
    config = tiny.config(load_format="dummy")
    load_model(config, backend, TensorParallel(), lambda *step: progress.append(step))
    assert progress == sorted(progress)
    (total,) = {total for _, total in progress}
    assert (progress[0][0], progress[-1][0]) == (0, total)
    # what is stored, and a bit for the names and shapes of the file
    assert (
        0.8 * (tiny.folder / _FILE).stat().st_size < total <= (tiny.folder / _FILE).stat().st_size
    )


@pytest.mark.parametrize("name", ["opt", "opt_norms_last", "gpt2"])
def test_dummy_weights_need_only_the_shape(name: str, tmp_path: Path) -> None:
    tiny = save_tiny(name, tmp_path)
    (tiny.folder / _FILE).unlink()
    assert _load(tiny.config(load_format="dummy")).num_kv_heads == 4


def test_dummy_numbers_of_four_bits_are_as_large_as_others() -> None:
    source = DummySource()
    blocks = torch.empty(2, 64, 4, 16, dtype=torch.uint8)
    scales = torch.empty(2, 64, 4, dtype=torch.uint8)
    matrices = torch.empty(2, 64, 128)
    for target, name in ((blocks, "w_blocks"), (scales, "w_scales"), (matrices, "w")):
        source.fill(target, name, tuple(target.shape), dim=0, start=0)
    packed = unpack_mxfp4(blocks, scales, torch.float32)
    assert packed.std().item() == pytest.approx(matrices.std().item(), rel=0.2)
