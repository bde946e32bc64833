"""The command on a few tokens; its layouts are those that the kernels take."""

import pytest
import torch

from load_tests.__main__ import main
from load_tests.bench.kernels.cpu import make_layout


def test_rows_write_their_last_tokens_into_blocks_of_their_own() -> None:
    layout = make_layout(3, 40, 1)
    assert layout.positions.tolist() == [39, 39, 39]
    assert layout.context_lens.tolist() == [40, 40, 40]
    assert sorted(layout.block_tables.flatten().tolist()) == list(range(9))
    expected = layout.block_tables[:, 2].long() * 16 + 7
    assert torch.equal(layout.slot_mapping, expected)
    assert layout.logit_indices is None


def test_a_chunk_is_a_whole_prompt() -> None:
    layout = make_layout(1, 20, 20)
    assert (layout.num_decodes, layout.max_query_len) == (0, 20)
    assert layout.query_starts.tolist() == [0, 20]
    assert layout.logit_indices is not None
    assert layout.logit_indices.tolist() == [19]


@pytest.mark.slow
def test_steps_and_chunks_are_split_by_operation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cpu_kernels", "--context", "32", "--repeats", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["1", "8", "16", "32", "1", "1", "1"]
    assert all("attention" in line and "sample" in line for line in lines)


@pytest.mark.slow
def test_numbers_of_threads_are_compared_by_operation(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--context", "32", "--repeats", "1", "--rows", "2", "--chunks"]
    assert main(["cpu_kernels", "--threads", "1,2", *options]) == 0
    printed = capsys.readouterr().out
    assert "2 rows,   2 tokens, context 32" in printed
    for name in ("linears", "attention", "head", "step, recorded"):
        assert name in printed
    assert "1 rows" not in printed
