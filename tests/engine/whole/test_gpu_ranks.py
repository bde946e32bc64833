"""Several GPUs against one: the same tokens, and bits that do not depend on the batch."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.engine.model.tiny import save_tiny
from tests.engine.whole.engine_run import run, tokens_of
from tests.engine.whole.rank_processes import RankProcesses
from tests.engine.whole.ranks import deterministic_bits, run_ranks
from tests.engine.whole.test_tensor_parallel_gang import PROMPTS, SAMPLINGS

pytestmark = pytest.mark.gpu
_SIZES = (2, 4)


@pytest.fixture(autouse=True)
def _several_gpus(size: int) -> None:
    if torch.cuda.device_count() < size:
        pytest.skip(f"needs {size} GPUs")


@pytest.fixture(scope="module")
def processes() -> Iterator[RankProcesses]:
    with RankProcesses(max(_SIZES)) as processes:
        yield processes


@pytest.mark.parametrize("has_peer_memory", [True, False])
@pytest.mark.parametrize("name", ["tied_llama3", "opt"])
@pytest.mark.parametrize("size", _SIZES)
def test_gpus_generate_what_one_cpu_does(
    size: int, name: str, has_peer_memory: bool, processes: RankProcesses, tmp_path: Path
) -> None:
    tiny = save_tiny(name, tmp_path)
    single = run(tiny, PROMPTS, SAMPLINGS, max_num_seqs=16)
    config = tiny.config(
        max_num_seqs=16,
        tensor_parallel_size=size,
        device="cuda",
        peer_memory=has_peer_memory,
    )
    with processes.gang(config, tmp_path) as executor:
        several = run(tiny, PROMPTS, SAMPLINGS, max_num_seqs=16, connect=lambda _: executor)
    assert tokens_of(several) == tokens_of(single)


@pytest.mark.parametrize("has_peer_memory", [True, False])
@pytest.mark.parametrize("size", _SIZES)
def test_bits_do_not_depend_on_what_the_gpus_do_beside(
    size: int, has_peer_memory: bool, tmp_path: Path
) -> None:
    config = save_tiny("mha", tmp_path).config(
        block_size=4,
        num_blocks=20,
        max_model_len=80,
        swap_bytes=1 << 20,
        tensor_parallel_size=size,
        device="cuda",
        dtype="bfloat16",
        peer_memory=has_peer_memory,
    )
    for bits in run_ranks(config, deterministic_bits, tmp_path):
        assert [bits[4:8], bits[8:]] == [bits[:4], bits[:4]]
