"""Model folders of a few kilobytes, made without torch."""

import json
from pathlib import Path
from typing import Any

from app.models.checkpoint import expected_tensors
from engine.model_config import read_model_config
from engine.model_files import INDEX_FILE, SINGLE_FILE, TensorInfo, encode_header

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def write_safetensors(
    path: Path, shapes: dict[str, tuple[int, ...]], dtype: str = "BF16", item_bytes: int = 2
) -> None:
    infos, end = {}, 0
    for name, shape in shapes.items():
        start = end
        size = item_bytes
        for dimension in shape:
            size *= dimension
        end = start + size
        infos[name] = TensorInfo(dtype, shape, start, end)
    path.write_bytes(encode_header(infos) + bytes(end))


def write_model(folder: Path, **changes: Any) -> Path:
    """Write a whole model in one file; `changes` go into config.json."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    (folder / "tokenizer.json").write_text("{}")
    write_safetensors(folder / SINGLE_FILE, expected_tensors(read_model_config(folder)))
    return folder


def write_sharded(folder: Path) -> dict[str, str]:
    """Write a model in two files and return its index."""
    write_model(folder)
    shapes = expected_tensors(read_model_config(folder))
    (folder / SINGLE_FILE).unlink()
    names = sorted(shapes)
    index: dict[str, str] = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        shard = f"model-{number:05}-of-00002.safetensors"
        write_safetensors(folder / shard, {name: shapes[name] for name in part})
        index |= dict.fromkeys(part, shard)
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return index
