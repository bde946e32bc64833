"""A model folder whose files say more than most: ends, defaults, a tokenizer with a dummy space."""

import json
from pathlib import Path

import torch
from tokenizers import AddedToken, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteFallback, Fuse, Replace, Sequence
from tokenizers.pre_tokenizers import Metaspace
from transformers import LlamaConfig, LlamaForCausalLM

from tests.app.text.tokenizers import CHATML
from tests.engine.model.tiny import TinyModel, save_model

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "</s>"]
MAX_MODEL_LEN = 512


def write_odd_folder(folder: Path) -> TinyModel:
    """Write the folder.

    The end in config.json is not the tokenizer's, generation_config.json makes every draw greedy,
    and text at the beginning of a piece gains a space (Metaspace, "first").
    """
    backend = _backend()
    differences = {
        "vocab_size": backend.get_vocab_size(),
        "max_position_embeddings": MAX_MODEL_LEN,
        "eos_token_id": 0,
    }
    torch.manual_seed(0)
    model = save_model(LlamaConfig, LlamaForCausalLM, differences, folder)
    backend.save(str(folder / "tokenizer.json"))
    names = {"eos_token": "<|im_end|>", "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    (folder / "generation_config.json").write_text('{"top_k": 1}')
    return model


def _backend() -> Backend:
    backend = Backend(models.BPE(byte_fallback=True))
    # trained on words, or it would learn whole sentences
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_next")
    special = [AddedToken(text, normalized=False, special=True) for text in CONTROL]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=[*special, *(f"<0x{byte:02X}>" for byte in range(256))],
    )
    backend.train_from_iterator(["▁The▁quick▁brown▁fox▁says:▁be▁kind,▁friend"] * 20, trainer)
    backend.pre_tokenizer = Metaspace(prepend_scheme="first", split=False)
    backend.decoder = Sequence([Replace("▁", " "), ByteFallback(), Fuse()])
    return backend
