import subprocess
import sys

import pytest

from app.command.__main__ import main
from tests import ROOT


def test_help_waits_for_nothing_large() -> None:
    code = (
        "import sys\n"
        "from app.command.__main__ import main\n"
        "try:\n    main(['serve', '--help'])\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        "assert not {'torch', 'ray', 'transformers', 'pydantic', 'psutil'} & sys.modules.keys()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "serve_config.yaml" in done.stdout


@pytest.mark.parametrize("arguments", [[], ["srve"], ["serve", "--proxy", "nginx"]])
def test_wrong_arguments_end_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: pagoda" in capsys.readouterr().err
