"""Which tensors the checkpoint of a model must hold, and whether a folder holds them."""

from pathlib import Path

from engine.architectures.registry import ARCHITECTURES
from engine.architectures.weights import PACKED_SUFFIXES, Tensors
from engine.config import ModelConfig
from engine.errors import ConfigError
from engine.model_files import TensorInfo, find_weights

_FLOAT_DTYPES = ("F32", "F16", "BF16")


def check_weights(folder: Path, model: ModelConfig) -> None:
    """Check that a folder holds exactly the tensors of its model; no weight is read.

    Raises:
        ConfigError: naming the first tensor that is missing, superfluous or misshapen.
    """
    architecture = ARCHITECTURES[model.architecture]
    stored = find_weights(folder)
    found = {architecture.canonical_name(name): place for name, place in stored.items()}
    expected = expected_tensors(model)
    if missing := sorted(expected.keys() - found.keys()):
        raise ConfigError(
            f"{folder} lacks tensor {missing[0]!r} ({len(missing)} of {len(expected)} missing); "
            "config.json and weights are not from the same model, or it was not fetched completely"
        )
    experts = model.spec.experts
    packed = ("U8",) if experts is not None and experts.packing == "mxfp4" else ()
    for name, (path, info) in found.items():
        if name in expected:
            dtypes = packed if packed and name.endswith(PACKED_SUFFIXES) else _FLOAT_DTYPES
            _check_tensor(f"{path}: tensor {name!r}", info, expected[name], dtypes)
        elif not architecture.is_redundant(model, name):
            raise ConfigError(
                f"{path}: tensor {name!r} has no place in a {model.architecture} as config.json "
                "describes it; config.json and weights are not from the same model"
            )


def has_weights(folder: Path) -> bool:
    """Whether a folder holds weights that need no conversion, however many."""
    return any(folder.glob("*.safetensors"))


def expected_tensors(model: ModelConfig) -> Tensors:
    """Canonical names and shapes of the tensors of a model's checkpoint."""
    return ARCHITECTURES[model.architecture].tensors(model)


def _check_tensor(
    what: str, info: TensorInfo, shape: tuple[int, ...], dtypes: tuple[str, ...]
) -> None:
    if info.shape != shape:
        raise ConfigError(
            f"{what} has shape {list(info.shape)}, config.json makes it {list(shape)}; "
            "config.json and weights are not from the same model"
        )
    if info.dtype not in dtypes:
        raise ConfigError(
            f"{what} has dtype {info.dtype}, supported are {', '.join(dtypes)}; choose a "
            "model that is not quantised"
        )
