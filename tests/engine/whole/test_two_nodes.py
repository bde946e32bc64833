"""A gang over two nodes of one cluster against one rank in this process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.engine.model.tiny import save_tiny
from tests.engine.whole.engine_run import run, tokens_of
from tests.engine.whole.two_nodes import GREEDY, PROMPTS


@pytest.mark.ray
@pytest.mark.slow
def test_ranks_on_two_nodes_generate_what_one_rank_does(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    tiny = save_tiny("tied_llama3", folder)
    command = [sys.executable, "-m", "tests.engine.whole.two_nodes", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    scheduler, first, second = answer["nodes"]
    assert scheduler == first != second
    of_one_rank = tokens_of(run(tiny, PROMPTS, GREEDY))
    assert answer["tokens"] == list(of_one_rank.values())
