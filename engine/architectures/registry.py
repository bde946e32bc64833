"""All architectures by the name in config.json."""

from engine.architectures import experts, gemma, glm, gpt, llama
from engine.architectures.architecture import Architecture

_ROWS = (
    llama.LLAMA, llama.MISTRAL, llama.MINISTRAL3, llama.QWEN2, llama.QWEN3, llama.PHI3,
    llama.SMOLLM3, llama.GRANITE, llama.OLMO2, llama.OLMO3, llama.STABLELM, llama.STARCODER2,
    llama.SEED_OSS, llama.ERNIE, llama.EXAONE4, gemma.GEMMA, gemma.GEMMA2, gemma.GEMMA3, glm.GLM,
    glm.GLM4, experts.MIXTRAL, experts.QWEN2_MOE, experts.QWEN3_MOE, experts.OLMOE,
    experts.FLEX_OLMO, experts.GLM4_MOE, experts.DOTS1, experts.GPT_OSS, gpt.OPT, gpt.GPT2,
)  # fmt: skip
ARCHITECTURES: dict[str, Architecture] = {row.name: row for row in _ROWS}
# models with images: architecture -> model type, and that of its text part where it names none
WRAPPERS = {
    "Mistral3ForConditionalGeneration": ("mistral3", "mistral"),
    "Gemma3ForConditionalGeneration": ("gemma3", "gemma3_text"),
}
