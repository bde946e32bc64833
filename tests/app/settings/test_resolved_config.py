import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.settings.resolved_config import resolved
from engine.errors import ConfigError
from tests import ROOT
from tests.app.models.checkpoints import write_model
from tests.app.test_preflight import write_yaml


def args(folder: Path) -> dict[str, Any]:
    return {"model": str(folder), "device": "cpu", "kv_cache_gib": 0.01}


def test_changes_are_options_as_yaml(tmp_path: Path) -> None:
    given = args(write_model(tmp_path))
    changes = {"block_size": "8", "prefix_cache": "false", "limits.max_body_mib": "2.0"}
    changed, plain = resolved(given, changes), resolved(given, {})
    assert (changed.block_size, changed.scheduler.prefix_cache) == (8, False)
    assert (plain.block_size, plain.scheduler.prefix_cache) == (16, True)
    assert changed.num_blocks // 2 == plain.num_blocks
    assert "block_size" not in given


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"blok_size": "8"}, "did you mean 'block_size'"),
        ({"block_size": "eight"}, "block_size is 'eight'"),
        ({"block_size": "["}, "block_size=\\[ is no YAML value"),
        ({"limits.body": "1"}, "unknown option 'limits.body'"),
        ({"block_size.x": "1"}, "block_size is"),
    ],
)
def test_a_bad_change_is_named(changes: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        resolved(args(write_model(tmp_path)), changes)


def test_the_command_answers_every_question_without_torch_or_ray(tmp_path: Path) -> None:
    path = write_yaml(tmp_path / "serve.yaml", args(write_model(tmp_path / "m")))
    code = (
        "import sys\n"
        "from app.settings.resolved_config import main\n"
        "code = main()\n"
        "assert not {'torch', 'ray', 'transformers'} & sys.modules.keys()\n"
        "sys.exit(code)\n"
    )
    questions = [{}, {"blok_size": "3"}, {"max_num_seqs": "7"}]

    def run(file: Path) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-c", code, str(file)],
            input=json.dumps(questions),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

    plain, misspelt, small = json.loads(run(path).stdout)
    assert plain["engine"]["max_num_seqs"] == 64
    assert plain["engine"]["scheduler"]["max_num_batched_tokens"] == 256
    assert "did you mean" in misspelt["error"]
    assert small["engine"]["max_num_seqs"] == 7
    refused = run(tmp_path / "none.yaml")
    assert (refused.returncode, refused.stderr) == (1, f"{tmp_path}/none.yaml does not exist\n")
