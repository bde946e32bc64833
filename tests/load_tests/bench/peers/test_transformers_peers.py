"""transformers generates the tokens of the engine, so that their speeds can be compared."""

from pathlib import Path

import torch

from load_tests.bench.peers.transformers_peers import Generate
from load_tests.local_engine import LocalEngine, local_config
from tests.engine.model.tiny import save_tiny

PROMPTS = [[3, 4, 5, 6], [7, 8, 9, 10]]


def test_both_caches_give_the_tokens_of_the_engine(tmp_path: Path) -> None:
    save_tiny("tied_llama3", tmp_path)
    sizes = {"num_blocks": 16, "max_num_seqs": 2, "max_num_batched_tokens": 64, "max_model_len": 64}
    ours = LocalEngine(local_config(tmp_path, "cpu", dtype="float32", **sizes))
    expected = ours.generate(PROMPTS, 6)
    ours.close()
    for cache in ("dynamic", "static"):
        assert Generate(tmp_path, torch.float32, cache).generate(PROMPTS, 6) == expected
