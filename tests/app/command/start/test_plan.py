import argparse
import io
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.command.start.display import PlainDisplay
from app.command.start.flags import add_option_flags
from app.command.start.plan import ServePlan, make_plan
from app.command.start.server_folder import all_folders
from app.settings.serve_file import applications
from engine.errors import ConfigError
from tests import ROOT
from tests.deployed.odd_folder import write_odd_folder


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ExitStack:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return ExitStack()


def write(folder: Path, **changes: Any) -> Path:
    content = yaml.safe_load((ROOT / "serve_config.yaml").read_text())
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump(content | changes))
    return path


def plan(stack: ExitStack, *words: str, dry_run: bool = False) -> ServePlan:
    parser = argparse.ArgumentParser()
    add_option_flags(parser)
    arguments = parser.parse_args([word for word in words if not word.endswith(".yaml")])
    what = next((word for word in words if word.endswith(".yaml")), None)
    arguments.__dict__ |= {"what": what, "host": None, "port": 9, "dry_run": dry_run}
    arguments.dashboard = False
    return make_plan(arguments, is_own=True, stack=stack)


def test_flags_change_what_is_served_and_not_the_users_file(
    stack: ExitStack, tmp_path: Path
) -> None:
    path = write(tmp_path)
    before = path.read_bytes()
    made = plan(stack, str(path), "--max-num-seqs", "8")
    assert made.app.max_num_seqs == 8
    assert (made.address, made.url) == (("127.0.0.1", 9), "http://127.0.0.1:9")
    assert (path.read_bytes(), made.shown) == (before, path)
    assert stat.S_IMODE(made.config.stat().st_mode) == 0o600
    stack.close()
    assert all_folders() == []


def test_two_applications_have_no_flags(stack: ExitStack, tmp_path: Path) -> None:
    [app] = yaml.safe_load((ROOT / "serve_config.yaml").read_text())["applications"]
    path = write(tmp_path, applications=[app, app | {"name": "b", "route_prefix": "/b"}])
    assert len(applications(plan(stack, str(path)).config)) == 2
    with pytest.raises(ConfigError, match="2 applications"):
        plan(stack, str(path), "--max-num-seqs", "8")


@pytest.mark.parametrize(
    ("http", "prefix", "url"),
    [
        ({"host": "0.0.0.0"}, "/", "http://127.0.0.1:9"),
        ({"host": "::"}, "/a/", "http://[::1]:9/a"),
        ({"ssl_certfile": "c"}, "/", "https://127.0.0.1:9"),
    ],
)
def test_the_url_is_one_that_this_machine_reaches(
    http: dict[str, str], prefix: str, url: str, stack: ExitStack, tmp_path: Path
) -> None:
    [app] = yaml.safe_load((ROOT / "serve_config.yaml").read_text())["applications"]
    path = write(tmp_path, http_options=http, applications=[app | {"route_prefix": prefix}])
    assert plan(stack, str(path), dry_run=True).url == url
    stack.close()


def model_words(folder: Path) -> list[str]:
    """A small model with a chat template, which the machine surely holds."""
    model = folder / "m"
    model.mkdir()
    write_odd_folder(model)
    flags = ["--load-format", "dummy", "--device", "cpu", "--num-blocks", "16"]
    return ["--model", str(model), *flags]


def checked(made: ServePlan, *, needs_key: bool = True) -> str:
    stream = io.StringIO()
    made.check(PlainDisplay(stream), needs_key=needs_key, with_weights=True)
    return stream.getvalue()


def test_a_server_gets_an_operator_key_where_it_has_none(stack: ExitStack, tmp_path: Path) -> None:
    words = [str(write(tmp_path)), *model_words(tmp_path)]
    made = plan(stack, *words)
    assert "✓ model" in checked(made)
    assert made.app.operator_keys_file == made.folder.key_file
    assert checked(plan(stack, *words), needs_key=False)
    other = plan(stack, *words, "--operator-keys-file", "/keys")
    checked(other)
    assert other.app.operator_keys_file == Path("/keys")


def test_a_context_too_short_for_a_greeting_is_warned_of(stack: ExitStack, tmp_path: Path) -> None:
    words = [str(write(tmp_path)), *model_words(tmp_path)]
    assert "warning" not in checked(plan(stack, *words))
    shown = checked(plan(stack, *words, "--max-model-len", "4"))
    assert "too few for an answer; raise max_model_len" in shown


def test_the_gpus_of_every_application_are_needed(stack: ExitStack, tmp_path: Path) -> None:
    [app] = yaml.safe_load((ROOT / "serve_config.yaml").read_text())["applications"]
    words = model_words(tmp_path)
    args = {"model": words[1], "load_format": "dummy", "num_blocks": 16, "max_num_seqs": 4}
    devices = {"a": "cpu", "b": "cuda"}
    apps = [
        app | {"name": name, "route_prefix": f"/{name}", "args": args | {"device": device}}
        for name, device in devices.items()
    ]
    made = plan(stack, str(write(tmp_path, applications=apps)))
    checked(made)
    assert made.num_gpus == 1
