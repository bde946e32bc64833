import importlib

import pytest

from app.command.parser import COMMANDS, make_parser


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_text_arguments_and_what_runs_it(name: str) -> None:
    module = importlib.import_module(COMMANDS[name][1])
    assert callable(module.add_arguments)
    assert callable(module.run)
    with pytest.raises(SystemExit) as caught:
        make_parser([name]).parse_args([name, "--help"])
    assert caught.value.code == 0


def test_only_the_command_that_is_asked_for_has_arguments() -> None:
    parsed = make_parser(["version"]).parse_args(["version"])
    assert parsed.run.__module__ == "app.command.tools.version"
    with pytest.raises(SystemExit):
        make_parser(["version"]).parse_args(["chat", "--system", "x"])
