"""Builds one rank's model from a folder of safetensors, or from its shape alone."""

from pathlib import Path

from engine.config import EngineConfig
from engine.model.dummy import DummySource
from engine.model.llama import Llama
from engine.model.parallel import TensorParallel
from engine.model.parameters import Parameters
from engine.model.safetensors_folder import Progress, SafetensorsFolder
from kernels.backend import KernelBackend


def load_model(
    config: EngineConfig,
    backend: KernelBackend,
    parallel: TensorParallel,
    on_progress: Progress = lambda done, total: None,
) -> Llama:
    """Load this rank's share of the model in the backend's dtype.

    Args:
        on_progress: told bytes done and bytes in total after each tensor.

    Raises:
        ConfigError: if the folder does not hold exactly the tensors of the model.
    """

    def build(source: DummySource | SafetensorsFolder) -> Llama:
        parameters = Parameters(source, parallel, backend.dtype, backend.device)
        return Llama(config.model, parameters, backend, num_positions=config.max_model_len)

    if config.load_format == "dummy":
        return build(DummySource())
    folder = SafetensorsFolder(Path(config.model_path), on_progress)
    model = build(folder)
    folder.check_all_read(lambda name: _is_redundant(name, config.model.tie_embeddings))
    return model


def _is_redundant(name: str, tied: bool) -> bool:
    """Whether a tensor repeats what is known: rope buffers, the copy of a tied embedding."""
    return name.endswith("rotary_emb.inv_freq") or (tied and name == "lm_head.weight")
