"""All architectures by the name in config.json."""

from engine.architectures import gpt2, llama, opt
from engine.architectures.architecture import Architecture

ARCHITECTURES: dict[str, Architecture] = {
    "LlamaForCausalLM": llama.LLAMA,
    "MistralForCausalLM": llama.MISTRAL,
    "Qwen2ForCausalLM": llama.QWEN2,
    "OPTForCausalLM": opt.OPT,
    "GPT2LMHeadModel": gpt2.GPT2,
}
