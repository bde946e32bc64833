import json
from pathlib import Path
from typing import Any

import pytest

from app.models.checkpoint import expected_tensors
from engine.architectures.registry import ARCHITECTURES
from engine.config import EngineConfig
from engine.model_config import read_model_config
from engine.worker.worker import load_worker
from tests import ROOT
from tests.app.models.published.outcomes import (
    outcome,
    page,
    published_configs,
    published_templates,
)
from tests.app.models.published.templates import CONVERSATIONS, compare
from tests.engine.worker.plans import GREEDY, Driver

CONFIGS = published_configs()
SERVED = [name for name, config in CONFIGS.items() if outcome(config).config]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_model_is_served_or_refused_with_one_clear_line(name: str) -> None:
    found = outcome(CONFIGS[name])
    if found.config is None:
        assert "\n" not in found.reason
        # who reads it knows what is wrong: the kind of model, or a field of its file
        named = [found.architecture, "auto_map", "quantised", *CONFIGS[name]]
        assert any(word in found.reason for word in named)
        assert len(found.reason) < 400
    else:
        assert found.architecture in ARCHITECTURES
        assert expected_tensors(found.config)


def test_there_are_enough_of_them_and_each_says_where_it_was_found() -> None:
    path = Path(__file__).parent / "models.json"
    sources = [entry["source"] for entry in json.loads(path.read_bytes()).values()]
    assert len(sources) >= 40
    assert all(source.startswith("github.com/") and "@" in source for source in sources)
    assert len(SERVED) >= 21


def test_enough_templates_were_rendered_as_transformers_does() -> None:
    found = list(published_templates().values())
    assert len(found) >= 40
    for entry in found:
        assert not entry["different"]
        assert entry["equal"] + entry["refused"] == len(CONVERSATIONS)
        assert entry["source"].startswith("github.com/")
    # most of each is text: a template that refuses all would say nothing
    assert sum(entry["equal"] > 12 for entry in found) >= 40


def test_templates_of_all_kinds_are_rendered_as_transformers_does() -> None:
    source = (
        "{{ bos_token }}{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}"
        "{%- for message in messages -%}{% if loop.first and message.role == 'assistant' %}"
        "{{ raise_exception('a user comes first') }}{% endif %}"
        "<{{ message.role }}>{{ message.content | trim }}"
        "{% for call in message.tool_calls %}{{ call.function | tojson }}{% endfor %}"
        "{{ message.reasoning_content or '' }}{% if message.content is string and '!' in"
        " message.content %}{% break %}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{{ enable_thinking }}{% endif %}"
    )
    found = compare(source)
    assert not found.different
    assert found.refused == ["answer first"]


def test_the_page_is_what_the_code_says() -> None:
    assert (ROOT / "docs" / "published-models.md").read_text(encoding="utf-8") == page()


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVED)
def test_a_served_model_answers(name: str, tmp_path: Path) -> None:
    """With dummy weights, of the same fields but two layers and few of everything else."""
    (tmp_path / "config.json").write_text(json.dumps(shrunken(CONFIGS[name])))
    model = read_model_config(tmp_path)
    config = EngineConfig.from_options(
        model=model,
        model_path=str(tmp_path),
        device="cpu",
        dtype="float32",
        load_format="dummy",
        num_blocks=16,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_model_len=64,
    )
    driver = Driver(load_worker(config))
    row = driver.admit([1, 2, 3, 4, 5], GREEDY)
    driver.prefill(row, 16)
    answer = driver.generate(row, 8)
    assert len(answer) == 8
    assert all(0 <= token < model.vocab_size for token in answer)


def shrunken(config: dict[str, Any]) -> dict[str, Any]:
    if "text_config" in config:
        return config | {"text_config": shrunken(config["text_config"])}
    if "n_embd" in config:
        return config | {"vocab_size": 64, "n_layer": 2, "n_head": 2, "n_embd": 128}
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads")
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    few = heads // (kv_heads or heads) * 2
    changes = {
        "vocab_size": 64, "num_hidden_layers": 2, "num_attention_heads": few,
        "num_key_value_heads": 2, "hidden_size": few * head_dim, "intermediate_size": 64,
        "ffn_dim": 64, "word_embed_proj_dim": few * head_dim, "num_experts": 8,
        "num_local_experts": 8, "moe_intermediate_size": 64, "n_routed_experts": 8,
        "shared_expert_intermediate_size": 64, "bos_token_id": 0,
        "eos_token_id": 1, "pad_token_id": 1,
        "layer_types": (config.get("layer_types") or [])[-2:],
    }  # fmt: skip
    return config | {name: value for name, value in changes.items() if config.get(name)}
