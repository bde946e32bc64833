"""A gang and the application over two nodes of one cluster against one rank in this process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from app.text.tokenizer import Tokenizer
from tests import ROOT
from tests.app.text.tokenizers import byte_level_backend
from tests.engine.model.tiny import save_tiny
from tests.engine.whole.engine_run import run, tokens_of
from tests.engine.whole.two_nodes import GREEDY, PROMPTS


@pytest.mark.ray
@pytest.mark.slow
def test_ranks_on_two_nodes_generate_what_one_rank_does(tmp_path: Path) -> None:
    folder, answer = tmp_path / "tiny", tmp_path / "answer.json"
    tiny = save_tiny("tied_llama3", folder)
    byte_level_backend().save(str(folder / "tokenizer.json"))
    command = [sys.executable, "-m", "tests.engine.whole.two_nodes", str(folder), str(answer)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(answer.read_text())
    of_one_rank = list(tokens_of(run(tiny, PROMPTS, GREEDY)).values())
    scheduler, first, second = found["gang"]["nodes"]
    assert scheduler == first != second
    assert found["gang"]["listeners"] == ["Listener", "TcpListener"]
    assert found["gang"]["tokens"] == of_one_rank
    assert len(set(found["served"]["nodes"])) == 2
    assert found["served"]["texts"] == list(map(Tokenizer.load(folder).decode, of_one_rank))
