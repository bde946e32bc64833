"""Up to how many prompt tokens the host takes longer to launch a step than the device to run it.

A step of Qwen3-30B-A3B with 1,100 tokens takes the host 47 ms to launch, a dozen kernels in each of
48 layers, and the device 28 to run (H200). So small and sparse models have graphs of longer steps
than others.
"""

from engine.config import ModelConfig

# Seconds to launch the kernels of a layer one by one, and those of its experts; measured beside an
# H200: 17 ms for Llama-3-8B, 47 to 60 for Qwen3-30B-A3B.
_LAYER_S = 0.5e-3
_EXPERTS_S = 0.5e-3
# what prompts beside decodes reach on an H200: Qwen3-30B-A3B took 27 ms for 950 tokens, 62 for
# 4,600 and 97 for 8,200
_FLOPS = 550e12
_BYTES_PER_S = 4.2e12
_VALUE_BYTES = 2


def is_launch_bound(model: ModelConfig, num_tokens: int) -> bool:
    """Whether launching a step of so many prompt tokens takes longer than running it.

    From shapes only, so that all ranks and all runs have the same graphs.
    """
    launch_s, params, active_params = _LAYER_S, model.linear_params, model.linear_params
    if (experts := model.spec.experts) is not None:
        launch_s += _EXPERTS_S
        params += experts.num_experts * model.expert_params
        active_params += experts.top_k * model.expert_params
    # all experts are hit
    read_s = _VALUE_BYTES * params / _BYTES_PER_S
    compute_s = 2 * active_params * num_tokens / _FLOPS
    return model.num_layers * launch_s > read_s + compute_s
