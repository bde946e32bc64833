"""A GGUF file of a few kilobytes with the architecture and the tokenizer of the embedded model."""

from pathlib import Path

import gguf
import numpy as np
from gguf.quants import quantize
from tokenizers.pre_tokenizers import ByteLevel

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "Ġ t", "Ġt he", "1 2"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
LAYERS, HIDDEN, INNER, HEADS, KV_HEADS = 2, 64, 96, 4, 2
HEAD_DIM = HIDDEN // HEADS


def tokens() -> list[str]:
    return [*SPECIAL, *sorted(ByteLevel.alphabet()), *(m.replace(" ", "") for m in MERGES)]


def write_gguf(path: Path, *, pre: str = "smollm", tied: bool = True) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    vocab_size = len(tokens())
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab_size)
    add_tokenizer(writer, pre)
    for name, shape in _shapes(vocab_size, tied).items():
        _add_tensor(writer, name, shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: gguf.GGUFWriter, pre: str) -> None:
    names = tokens()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(names)
    writer.add_token_types([3 if name in SPECIAL else 1 for name in names])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(TEMPLATE)


def _shapes(vocab_size: int, tied: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab_size, HIDDEN)}
    for index in range(LAYERS):
        shapes |= {
            f"blk.{index}.attn_norm.weight": (HIDDEN,),
            f"blk.{index}.attn_q.weight": (HIDDEN, HIDDEN),
            f"blk.{index}.attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{index}.attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{index}.attn_output.weight": (HIDDEN, HIDDEN),
            f"blk.{index}.ffn_norm.weight": (HIDDEN,),
            f"blk.{index}.ffn_gate.weight": (INNER, HIDDEN),
            f"blk.{index}.ffn_up.weight": (INNER, HIDDEN),
            f"blk.{index}.ffn_down.weight": (HIDDEN, INNER),
        }
    shapes["output_norm.weight"] = (HIDDEN,)
    return shapes if tied else shapes | {"output.weight": (vocab_size, HIDDEN)}


def _add_tensor(writer: gguf.GGUFWriter, name: str, shape: tuple[int, ...]) -> None:
    # crc-like but fixed: only the name decides the values
    seed = sum(name.encode())
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    if len(shape) == 1:
        writer.add_tensor(name, values)
        return
    kind = gguf.GGMLQuantizationType.Q8_0
    if "ffn_" in name:
        kind = gguf.GGMLQuantizationType.Q4_1
    writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
