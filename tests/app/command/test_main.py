import subprocess
import sys

import pytest

from app.command.__main__ import main
from tests import ROOT

LARGE = {"torch", "ray", "transformers"}


@pytest.mark.parametrize(
    ("words", "unwanted", "shown"),
    [
        (["--help"], LARGE | {"pydantic", "psutil", "yaml", "httpx", "rich"}, "serve"),
        (
            ["serve", "--help"],
            LARGE | {"numpy", "tokenizers", "fsspec", "rich"},
            "serve_config.yaml",
        ),
        (["status", "--help"], LARGE, "--url"),
    ],
)
def test_help_waits_for_nothing_large(words: list[str], unwanted: set[str], shown: str) -> None:
    code = (
        "import sys\n"
        "from app.command.__main__ import main\n"
        f"try:\n    main({words})\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        f"assert not {unwanted} & sys.modules.keys()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert shown in done.stdout


@pytest.mark.parametrize("arguments", [[], ["srve"], ["serve", "--proxy", "nginx"]])
def test_wrong_arguments_end_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: pagoda" in capsys.readouterr().err


def test_ctrl_c_and_a_reader_that_has_gone_are_no_tracebacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for error, code in ((KeyboardInterrupt(), 130), (BrokenPipeError(), 0)):

        def fail(arguments: object, error: BaseException = error) -> int:
            raise error

        monkeypatch.setattr("app.command.tools.version.run", fail)
        monkeypatch.setattr("sys.stdout", sys.stdout)
        assert main(["version"]) == code
