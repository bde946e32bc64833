import subprocess

import pytest

from app.command.__main__ import main


def test_bash_completes_commands_and_flags_of_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert "--max-num-seqs" in script
    assert "from-vllm" in script
