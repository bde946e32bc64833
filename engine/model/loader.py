"""Builds one rank's model from a folder of safetensors, or with dummy weights."""

from pathlib import Path

from engine.architectures.registry import ARCHITECTURES
from engine.config import EngineConfig
from engine.model.dummy import DummySource
from engine.model.gpt2 import Gpt2
from engine.model.llama import Llama
from engine.model.model import MakeModel, Model
from engine.model.opt import Opt
from engine.model.parallel import TensorParallel
from engine.model.parameters import Parameters
from engine.model.safetensors_folder import Progress, SafetensorsFolder
from kernels.backend import KernelBackend

_MODELS: dict[str, MakeModel] = {
    "LlamaForCausalLM": Llama,
    "MistralForCausalLM": Llama,
    "Qwen2ForCausalLM": Llama,
    "OPTForCausalLM": Opt,
    "GPT2LMHeadModel": Gpt2,
}


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

    def build(source: DummySource | SafetensorsFolder) -> Model:
        parameters = Parameters(source, parallel, backend.dtype, backend.device)
        make = _MODELS[config.model.architecture]
        return make(config.model, parameters, backend, num_positions=config.scheduler.max_model_len)

    if config.load_format == "dummy":
        return build(DummySource())
    architecture = ARCHITECTURES[config.model.architecture]
    folder = SafetensorsFolder(Path(config.model_path), on_progress, architecture.canonical_name)
    model = build(folder)
    folder.check_all_read(lambda name: architecture.is_redundant(config.model, name))
    return model
