"""Builds one rank's model from a folder of safetensors, or with dummy weights."""

from pathlib import Path

from engine.architectures.registry import ARCHITECTURES
from engine.config import EngineConfig
from engine.model.decoder import Decoder
from engine.model.dummy import DummySource
from engine.model.model import Model
from engine.model.parallel import TensorParallel
from engine.model.parameters import Parameters
from engine.model.safetensors_folder import Progress, SafetensorsFolder
from kernels.backend import KernelBackend


def load_model(
    config: EngineConfig,
    backend: KernelBackend,
    parallel: TensorParallel,
    on_progress: Progress = lambda done, total: None,
) -> Model:
    """Load this rank's share of the model in the backend's dtype.

    Args:
        on_progress: called with bytes done and bytes in total after each tensor.

    Raises:
        ConfigError: if the folder does not hold exactly the tensors of the model, or the model
            knows fewer positions than the longest sequence has.
    """
    architecture = ARCHITECTURES[config.model.architecture]

    def build(source: DummySource | SafetensorsFolder) -> Model:
        stored = architecture.stored(config.model)
        parameters = Parameters(source, stored, parallel, backend.dtype, backend.device)
        length = config.scheduler.max_model_len
        return Decoder(config.model, parameters, backend, num_positions=length)

    if config.load_format == "dummy":
        tensors = architecture.stored(config.model).tensors()
        dummies = DummySource(tensors, backend.dtype, on_progress)
        model = build(dummies)
        dummies.finish()
        return model
    folder = SafetensorsFolder(Path(config.model_path), on_progress, architecture.canonical_name)
    model = build(folder)
    folder.check_all_read(lambda name: architecture.is_redundant(config.model, name))
    return model
