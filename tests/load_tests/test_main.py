import subprocess
import sys

import pytest

from load_tests.__main__ import COMMANDS, main
from tests import ROOT


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_with_an_example(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        main([name, "--help"])
    assert raised.value.code == 0
    shown = capsys.readouterr().out
    assert f"{COMMANDS[name][1:]}.\n" in shown
    assert f"example:\n  python -m load_tests {name}" in shown
    assert "default: None" not in shown


def test_the_overview_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["--help"])
    assert raised.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)


@pytest.mark.parametrize("words", [[], ["nonsense"]])
def test_no_or_an_unknown_command_ends_with_status_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(words)
    assert raised.value.code == 2


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; sys.argv = ['x', 'cpu_peers', '--help']\n"
        "from load_tests.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = ('torch', 'ray', 'aiohttp', 'matplotlib', 'transformers')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_application_is_not_imported_but_by_what_is_served() -> None:
    sources = {path: path.read_text() for path in (ROOT / "load_tests").rglob("*.py")}
    importing = [path for path, s in sources.items() if "import app" in s or "from app" in s]
    assert importing == [ROOT / "load_tests/path/application.py"]
