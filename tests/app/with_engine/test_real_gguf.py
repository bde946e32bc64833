"""Real GGUF files through conversion, tokenizer and engine, beside transformers and gguf."""

import random
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from app.models.checkpoint import check_weights
from app.models.conversion.gguf_config import family_of
from app.models.conversion.gguf_reader import GgufModel
from app.models.conversion.gguf_tokenizer import make_tokenizer
from app.models.model_store import resolve
from app.text.tokenizer import Tokenizer
from engine.architectures.registry import ARCHITECTURES
from engine.model_config import read_model_config
from engine.worker.worker import load_worker
from tests.app.with_engine.real_gguf import (
    FOLDER,
    GEMMA3_270M,
    QWEN_CODER,
    PackagedGguf,
    real_gguf,
)
from tests.engine.model.tiny import TinyModel
from tests.engine.whole.engine_run import run
from tests.engine.worker.plans import GREEDY, Driver

QUESTIONS = [
    "Write a function that reverses a string in Python.",
    "What does `git rebase` do?",
    "def fibonacci(n):",
    "Explain what a hash table is in one sentence.",
    "SELECT name FROM users WHERE",
    "How do I read a file line by line in C?",
    "1 + 1 =",
    "for (int i = 0; i < 10; i++) {",
    "Was ist eine verkettete Liste?",
    "写一个冒泡排序。",
    "Fix this: `prnt('hello')`",
    "import numpy as np\n\n\nx = np.",
    "What is the time complexity of quicksort?",
    "fn main() {\n    println!(",
    "The capital of France is",
    "Translate to Spanish: good morning, café, naïve 🎉",
    "  two  spaces\tand tabs",
    "regex for 2024-01-31",
    "class Stack:\n    def __init__(self):\n",
    "Once upon a time",
]
NUM_TOKENS = 12
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@dataclass(frozen=True, slots=True)
class RealModel:
    """A published file and the folder that it was converted to."""

    file: Path
    folder: Path


@pytest.fixture(scope="module", params=[QWEN_CODER, GEMMA3_270M], ids=lambda model: model.file)
def real(request: pytest.FixtureRequest) -> RealModel:
    file = real_gguf(request.param)
    architecture = family_of(GgufModel([file])).architecture
    if architecture not in ARCHITECTURES:
        pytest.skip(f"{architecture} is not served")
    return RealModel(file, resolve(str(file), FOLDER))


def dequantised(path: Path) -> Mapping[str, Any]:
    return {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for tensor in gguf.GGUFReader(path).tensors
        if re.match(r"(token_embd|output|output_norm|blk\.(0|11|23)\.)", tensor.name)
    }


def test_weights_are_those_of_the_file(real: RealModel) -> None:
    model = GgufModel([real.file])
    family, layers = family_of(model), model.of_model("block_count")
    names = gguf.get_tensor_name_map(
        {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}[model.architecture], layers
    )
    expected = dequantised(real.file)
    seen = 0
    with safe_open(real.folder / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118 (it is no dict)
            stored = names.get_name(name, (".weight", ".bias"))
            if stored is not None and stored in expected:
                values = torch.from_numpy(expected[stored].copy())
                if family.has_shifted_norms and "norm" in stored:
                    values -= 1
                tensor = file.get_tensor(name)
                assert torch.equal(tensor, values.to(tensor.dtype)), name
                seen += 1
    assert seen == len(expected) > 20
    check_weights(real.folder, read_model_config(real.folder))


def test_the_configuration_of_qwen_is_the_published_one() -> None:
    model = read_model_config(resolve(str(real_gguf(QWEN_CODER)), FOLDER))
    assert (model.architecture, model.num_layers) == ("Qwen2ForCausalLM", 24)
    assert (model.hidden_size, model.num_heads, model.num_kv_heads) == (896, 14, 2)
    assert (model.max_position, model.vocab_size, model.norm_eps) == (32768, 151936, 1e-6)
    assert model.eos_token_ids == (151645,)


@pytest.mark.parametrize("model", [QWEN_CODER, GEMMA3_270M], ids=lambda model: model.file)
def test_token_ids_are_those_of_transformers(model: PackagedGguf) -> None:
    path = real_gguf(model)
    ours = make_tokenizer(GgufModel([path]))
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in QUESTIONS:
        assert ours.encode(text).ids == theirs(text)["input_ids"], text
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ours.decode(ids, skip_special_tokens=False) == unicodedata.normalize("NFC", text)


def test_chats_are_rendered_as_transformers_do() -> None:
    folder = resolve(str(real_gguf(QWEN_CODER)), FOLDER)
    ours, theirs = Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
    for text in QUESTIONS:
        messages = [{"role": "user", "content": text}]
        expected: Any = theirs.apply_chat_template(messages, add_generation_prompt=True)
        assert ours.encode_chat(messages).tolist() == expected["input_ids"]
    assert ours.end_ids == (151645,)


def test_answers_equal_transformers(real: RealModel) -> None:
    tokenizer = Tokenizer.load(real.folder)
    reference = AutoModelForCausalLM.from_pretrained(real.folder, dtype=torch.float32)
    # ends count as any other token, as in the engine without a scheduler
    reference.generation_config.eos_token_id = None
    tiny = TinyModel(real.folder, reference)
    driver = Driver(load_worker(tiny.config(num_blocks=64)))
    for text in QUESTIONS:
        prompt = tokenizer.encode(text).tolist()
        row = driver.admit(prompt)
        driver.prefill(row, 64)
        assert driver.generate(row, NUM_TOKENS) == tiny.greedy(prompt, NUM_TOKENS), text
        driver.release(row)


def test_answers_beyond_the_window_equal_transformers() -> None:
    folder = resolve(str(real_gguf(GEMMA3_270M)), FOLDER)
    tokenizer = Tokenizer.load(folder)
    tiny = TinyModel(folder, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
    assert {layer.window for layer in tiny.config().model.spec.layers} == {0, 512}
    prompts = []
    # one within, one that passes its window while it decodes, and two beyond
    for length in (200, 506, 700, 1300):
        texts = random.Random(length).choices(QUESTIONS, k=length // 4)
        prompts.append(tokenizer.encode(" ".join(texts)).tolist()[:length])
        assert len(prompts[-1]) == length
    # prompts in chunks, decodes beside them, and a pool that does not hold them all
    engine = run(
        tiny,
        prompts,
        replace(GREEDY, max_tokens=NUM_TOKENS),
        num_blocks=130,
        max_model_len=1536,
        max_num_batched_tokens=512,
    )
    for index, prompt in enumerate(prompts):
        output = engine.reported[index, 0].tokens
        assert output == tiny.most_likely(prompt, output), len(prompt)
