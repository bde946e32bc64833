import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from engine.config import ModelConfig
from engine.errors import ConfigError
from engine.model_config import read_model_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
PACKED = LLAMA | {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "quantization_config": {"quant_method": "mxfp4"},
}
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
QWEN = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN["num_attention_heads"] = 32
LLAMA3_ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(folder: Path, config: dict[str, Any], generation: Any = None) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_model_config(folder)


@pytest.mark.parametrize(
    "config",
    [
        LLAMA,
        LLAMA | {"num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True},
        LLAMA | {"num_key_value_heads": None, "head_dim": None, "rope_theta": 500000.0},
        LLAMA | {"rope_scaling": {"type": "linear", "factor": 4.0}, "rms_norm_eps": 1e-5},
        LLAMA | {"rope_scaling": {"rope_type": "llama3"} | LLAMA3_ROPE, "rope_theta": 5e5},
        LLAMA | {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5} | LLAMA3_ROPE},
        LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 12345.0}},
        LLAMA | {"rope_scaling": None, "attention_bias": True, "eos_token_id": [1, 2]},
        MISTRAL | {"sliding_window": None, "num_attention_heads": 8},
        QWEN,
        QWEN | {"num_key_value_heads": 4, "eos_token_id": 7, "rope_theta": 1e6},
    ],
)
def test_missing_and_given_fields_mean_what_they_mean_in_transformers(
    config: dict[str, Any], tmp_path: Path
) -> None:
    ours = read(tmp_path, config)
    theirs = AutoConfig.from_pretrained(tmp_path)
    rope = theirs.rope_parameters
    eos = theirs.eos_token_id
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == getattr(theirs, "head_dim", None) or 64 // theirs.num_attention_heads
    assert ours.max_position == theirs.max_position_embeddings
    assert ours.norm_eps == theirs.rms_norm_eps
    assert ours.tie_embeddings == theirs.tie_word_embeddings
    assert list(ours.eos_token_ids) == (
        eos if isinstance(eos, list) else [] if eos is None else [eos]
    )
    [own] = ours.spec.ropes
    assert own.theta == rope["rope_theta"]
    assert own.scaling.replace("none", "default") == rope["rope_type"]
    if own.scaling != "none":
        assert own.factor == rope["factor"]
    if own.scaling == "llama3":
        assert own.original_max_position == rope["original_max_position_embeddings"]


def test_biases_depend_on_the_architecture(tmp_path: Path) -> None:
    with_bias = {"attention_bias": True}
    found = [read(tmp_path, config | with_bias).spec for config in (LLAMA, QWEN)]
    assert [(spec.qkv_bias, spec.output_bias) for spec in found] == [(True, True), (True, False)]
    assert not read(tmp_path, LLAMA).spec.qkv_bias
    assert read(tmp_path, LLAMA | {"mlp_bias": True}).spec.feed_bias


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"eos_token_id": [128001, 128009]}, (3, 128001, 128009)),
        ({"eos_token_id": 5}, (3, 5)),
        ({"eos_token_id": [5, 3]}, (3, 5)),
        ({}, (3,)),
        ({"eos_token_id": None}, (3,)),
    ],
)
def test_end_ids_of_both_files_count(
    generation: dict[str, Any], expected: tuple[int, ...], tmp_path: Path
) -> None:
    assert read(tmp_path, LLAMA | {"eos_token_id": 3}, generation).eos_token_ids == expected


def test_end_ids_of_generation_config_replace_what_no_file_names(tmp_path: Path) -> None:
    assert read(tmp_path, LLAMA, {"eos_token_id": 5}).eos_token_ids == (5,)
    assert read(tmp_path, LLAMA | {"eos_token_id": None}, {}).eos_token_ids == ()


def test_sliding_windows_are_of_layers(tmp_path: Path) -> None:
    v01 = MISTRAL | {"num_key_value_heads": 2, "max_position_embeddings": 32768}
    assert read(tmp_path, v01 | {"sliding_window": 4096}).max_position == 32768
    # as in transformers, where the file names none
    assert read(tmp_path, v01).spec.layers[0].window == 4096
    unused = QWEN | {"sliding_window": 1024, "use_sliding_window": False}
    assert read(tmp_path, unused).spec.layers[0].window == 0
    used = unused | {"use_sliding_window": True, "max_window_layers": 1}
    assert [layer.window for layer in read(tmp_path, used).spec.layers] == [0, 1024]


def test_the_architecture_may_be_named_by_the_model_type_alone(tmp_path: Path) -> None:
    config = {name: value for name, value in LLAMA.items() if name != "architectures"}
    assert read(tmp_path, config).architecture == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"auto_map": {"AutoModel": "evil.Model"}}, "which is never run"),
        ({"architectures": ["BertModel"]}, "'BertModel' is not supported; docs/models.md"),
        ({"architectures": "Llama"}, "not supported"),
        ({"architectures": [], "model_type": "bert"}, "'bert' is not supported"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_scaling": {"rope_type": "abf", "factor": 2}}, "rope scaling 'abf'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "x": 1}}, "rope_scaling.x is not"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}},
            "rope_scaling.short_factor",
        ),
        ({"rope_parameters": {"full_attention": 3}}, "of full_attention 3 is not an object"),
        ({"sliding_window": 5}, "sliding_window 5 is not supported"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "'linear_attention'"),
        ({"layer_types": ["full_attention"]}, "a list of 2 items"),
        ({"mup_scale": 0.5}, "mup_scale is not known here"),
        ({"qk_norm": True}, "qk_norm True is not supported, only False"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is None"),
        ({"rope_scaling": [1]}, "is not an object"),
        ({"partial_rotary_factor": 0.01}, "0 of 16 dimensions of a head cannot turn"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"num_hidden_layers": None}, "num_hidden_layers is None"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"num_key_value_heads": 3}, "4 is not a multiple of num_key_value_heads 3"),
        ({"head_dim": 7}, "head_dim 7 is odd"),
        ({"eos_token_id": 128256}, "eos_token_id 128256"),
        ({"eos_token_id": ["x"]}, "eos_token_id 'x'"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: ") as caught:
        read(tmp_path, LLAMA | changes)
    assert message in str(caught.value)


GEMMA3_TEXT = {
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "model_type": "gemma3_text",
    "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}
GEMMA3 = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "eos_token_id": [1, 106],
    "mm_tokens_per_image": 256,
    "text_config": GEMMA3_TEXT,
    "vision_config": {"hidden_size": 1152},
}
MISTRAL3 = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "model_type": "mistral3",
    "text_config": MISTRAL | {"sliding_window": None, "num_key_value_heads": 2},
}


def test_the_text_part_of_a_model_with_images_is_read(tmp_path: Path) -> None:
    gemma = read(tmp_path, GEMMA3)
    assert gemma.architecture == "Gemma3ForCausalLM"
    assert (gemma.num_heads, gemma.head_dim, gemma.vocab_size) == (8, 256, 262208)
    assert gemma.tie_embeddings
    assert gemma.eos_token_ids == (1, 106)
    windows = [gemma.spec.layer(index).window for index in range(12)]
    assert windows == [1024, 1024, 1024, 1024, 1024, 0] * 2
    full, local = (gemma.spec.ropes[gemma.spec.layer(index).rope or 0] for index in (5, 0))
    assert (full.theta, full.scaling, full.factor) == (1e6, "linear", 8.0)
    assert (local.theta, local.scaling) == (1e4, "none")

    mistral = read(tmp_path, MISTRAL3)
    assert (mistral.architecture, mistral.tie_embeddings) == ("MistralForCausalLM", False)
    by_type = {name: value for name, value in MISTRAL3.items() if name != "architectures"}
    assert read(tmp_path, by_type | {"tie_word_embeddings": True}).tie_embeddings
    with pytest.raises(ConfigError, match="text_config None is not an object"):
        read(tmp_path, MISTRAL3 | {"text_config": None})


def test_old_and_new_files_say_the_same(tmp_path: Path) -> None:
    yarn = {"factor": 8.0, "original_max_position_embeddings": 8192}
    olmo3 = LLAMA | {"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3"}
    olmo3 |= {"num_hidden_layers": 8, "sliding_window": 4096}
    old = olmo3 | {"rope_theta": 5e5, "rope_scaling": {"rope_type": "yarn"} | yarn}
    new = olmo3 | {
        "dtype": "bfloat16",
        "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 2,
        "rope_parameters": {
            "full_attention": {"rope_type": "yarn", "rope_theta": 5e5} | yarn,
            "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
        },
    }
    assert read(tmp_path, old) == read(tmp_path, new)
    scalings = {rope.scaling for rope in read(tmp_path, old).spec.ropes}
    assert scalings == {"yarn", "none"}
    phi = LLAMA | {"architectures": ["Phi3ForCausalLM"], "partial_rotary_factor": 0.5}
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    old = phi | {"original_max_position_embeddings": 1024, "rope_theta": 1e4}
    old |= {"rope_scaling": {"type": "su"} | factors}
    new = phi | {
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "original_max_position_embeddings": 1024,
            **factors,
        }
    }
    assert read(tmp_path, old) == read(tmp_path, new)


@pytest.mark.parametrize(
    "harmless",
    [
        {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"a": 1}},
        {"activation": "swiglu", "pretraining_tp": 2, "max_window_layers": 28},
        {"_attn_implementation_autoset": True, "torch_dtype": "float16", "sliding_window": None},
        {"num_experts": 0, "use_sliding_window": False, "layer_types": ["full_attention"] * 2},
    ],
)
def test_fields_that_change_nothing_are_passed_over(
    harmless: dict[str, Any], tmp_path: Path
) -> None:
    assert read(tmp_path, LLAMA | harmless) == read(tmp_path, LLAMA)


def test_code_in_a_folder_is_never_run_and_passed_over_where_it_is_known(tmp_path: Path) -> None:
    phi = LLAMA | {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3"}
    code = {"auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}}
    assert read(tmp_path, phi | code) == read(tmp_path, phi)


@pytest.mark.parametrize(
    ("scaling", "max_position"),
    [
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}, 32768),
        ({"type": "dynamic", "factor": 2.0}, 65536),
        ({"type": "linear", "factor": 2.0}, 32768),
    ],
)
def test_a_rope_may_stretch_the_context(
    scaling: dict[str, Any], max_position: int, tmp_path: Path
) -> None:
    config = LLAMA | {"max_position_embeddings": 32768, "rope_scaling": scaling}
    assert read(tmp_path, config).max_position == max_position


OPT = {"architectures": ["OPTForCausalLM"], "model_type": "opt"}
OPT_350M = OPT | {"hidden_size": 64, "ffn_dim": 96, "word_embed_proj_dim": 32, "vocab_size": 50272}
GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}
GPT3_XL = GPT2 | {"n_embd": 2048, "n_head": 16, "n_layer": 24, "n_positions": 2048}


@pytest.mark.parametrize(
    "config", [OPT, OPT_350M | {"do_layer_norm_before": False, "num_attention_heads": 4}]
)
def test_opt_fields_mean_what_they_mean_in_transformers(
    config: dict[str, Any], tmp_path: Path
) -> None:
    ours = read(tmp_path, config)
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert ours.vocab_size == theirs.vocab_size
    assert (ours.hidden_size, ours.intermediate_size) == (theirs.hidden_size, theirs.ffn_dim)
    assert ours.embedding_width == theirs.word_embed_proj_dim
    assert (ours.num_layers, ours.num_heads) == (
        theirs.num_hidden_layers,
        theirs.num_attention_heads,
    )
    assert ours.max_position == theirs.max_position_embeddings
    assert ours.spec.norms == ("pre" if theirs.do_layer_norm_before else "last")
    assert ours.eos_token_ids == (theirs.eos_token_id,)


@pytest.mark.parametrize("config", [GPT2, GPT3_XL, GPT2 | {"n_inner": 99, "eos_token_id": 5}])
def test_gpt2_fields_mean_what_they_mean_in_transformers(
    config: dict[str, Any], tmp_path: Path
) -> None:
    ours = read(tmp_path, config)
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert ours.vocab_size == theirs.vocab_size
    assert (ours.hidden_size, ours.num_layers) == (theirs.n_embd, theirs.n_layer)
    assert ours.intermediate_size == (theirs.n_inner or 4 * theirs.n_embd)
    assert ours.head_dim * ours.num_heads == theirs.n_embd
    assert ours.max_position == theirs.n_positions
    assert ours.norm_eps == theirs.layer_norm_epsilon
    assert ours.eos_token_ids == (theirs.eos_token_id,)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (OPT | {"activation_function": "gelu"}, "activation_function 'gelu' is not supported"),
        (OPT | {"enable_bias": False}, "enable_bias False is not supported, only True"),
        (OPT | {"_remove_final_layer_norm": True}, "_remove_final_layer_norm"),
        (OPT | {"hidden_size": 65}, "65 is not a multiple of 12 heads"),
        (GPT2 | {"activation_function": "relu"}, "activation_function 'relu' is not supported"),
        (GPT2 | {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        (GPT2 | {"n_positions": 0}, "n_positions is 0"),
        (PACKED | {"hidden_size": 72}, "hidden_size 72 .* not a multiple of 32"),
        (PACKED | {"intermediate_size": 80}, "intermediate_size 80 .* not a multiple of 32"),
    ],
)
def test_unsupported_variants_are_refused_by_name(
    config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, config)


@pytest.mark.parametrize("content", [None, "{", "[]", "\xff", "[" * 100000])
def test_a_missing_or_damaged_file_is_named(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_model_config(tmp_path)
