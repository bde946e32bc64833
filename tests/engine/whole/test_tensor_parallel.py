"""Two ranks against one: the same tokens, greedy and drawn, from files and from dummy weights."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.worker.worker import load_worker
from tests.engine.model.tiny import TinyModel, save_tiny
from tests.engine.whole.ranks import deterministic_bits, mixed_batch, run_ranks


# an odd vocabulary, biases before and behind attention, tied and untied heads
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "all_bias",
        "qwen2",
        "opt",
        "opt_norms_last",
        "gpt2",
        "qwen3",
        "olmo2",
        "mixtral",
        "qwen2_moe",
    ],
)
def test_two_ranks_generate_what_one_does(name: str, tmp_path: Path) -> None:
    tiny = save_tiny(name, tmp_path)
    single = mixed_batch(load_worker(tiny.config(block_size=4)))
    both = run_ranks(tiny.config(block_size=4, tensor_parallel_size=2), mixed_batch, tmp_path)
    assert both == [single, single]
    assert single[0] == tiny.greedy(list(range(3)), 32)


# two key-value heads, each of which four ranks hold, and one for each rank
@pytest.mark.slow
@pytest.mark.parametrize("name", ["tied_llama3", "opt"])
def test_eight_ranks_generate_what_one_does(name: str, tmp_path: Path) -> None:
    tiny = save_tiny(name, tmp_path, num_attention_heads=8)
    single = mixed_batch(load_worker(tiny.config(block_size=4)))
    everybody = run_ranks(tiny.config(block_size=4, tensor_parallel_size=8), mixed_batch, tmp_path)
    assert everybody == [single] * 8


@pytest.mark.slow
def test_dummy_weights_are_the_same_on_two_ranks(tiny: TinyModel, tmp_path: Path) -> None:
    config = tiny.config(load_format="dummy")
    single = mixed_batch(load_worker(config))
    assert run_ranks(replace(config, tensor_parallel_size=2), mixed_batch, tmp_path) == [
        single,
        single,
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "num_ranks"), [("tied_llama3", 2), ("mha", 4), ("opt", 4)])
def test_bits_do_not_depend_on_what_the_ranks_do_beside(
    name: str, num_ranks: int, tmp_path: Path
) -> None:
    config = save_tiny(name, tmp_path).config(
        block_size=4,
        num_blocks=20,
        max_model_len=80,
        swap_bytes=1 << 20,
        tensor_parallel_size=num_ranks,
    )
    for bits in run_ranks(config, deterministic_bits, tmp_path):
        single = bits[:4]
        assert len(bits) == 4 * 3
        assert [bits[4:8], bits[8:]] == [single, single]


def test_several_ranks_need_a_rendezvous(tiny: TinyModel) -> None:
    with pytest.raises(ConfigError, match="needs a rendezvous"):
        load_worker(tiny.config(tensor_parallel_size=2))


@pytest.mark.parametrize("rank", [-1, 2])
def test_rank_must_be_one_of_them(tiny: TinyModel, rank: int) -> None:
    with pytest.raises(ConfigError, match=f"rank {rank} is not"):
        load_worker(tiny.config(tensor_parallel_size=2), rank=rank)
