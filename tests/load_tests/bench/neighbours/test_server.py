import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from load_tests.bench.neighbours.server import LoadedServer, Spent

INGRESS, PYTHON_PROXY = "ray::ServeReplica:pagoda:Ingress", "ray::ProxyActor"
# computes until its input says that it has been seen to
BUSY = (
    "import sys, time\nwhile time.process_time() < 0.1: pass\nprint(flush=True); sys.stdin.read()"
)


@contextmanager
def running(*titles: str) -> Iterator[list[psutil.Process]]:
    """Processes that look like these."""
    with ExitStack() as stack:
        processes = []
        for title in titles:
            process = subprocess.Popen(
                [title, "-c", BUSY],
                executable=sys.executable,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            stack.enter_context(process)
            assert process.stdin is not None
            assert process.stdout is not None
            stack.callback(process.stdin.close)
            process.stdout.readline()
            processes.append(psutil.Process(process.pid))
        yield processes


@pytest.mark.parametrize(
    ("front", "proxy"),
    [((), "python"), ((PYTHON_PROXY,), "python"), ((PYTHON_PROXY, "haproxy"), "haproxy")],
)
def test_a_server_knows_its_proxy(front: tuple[str, ...], proxy: str) -> None:
    with running(INGRESS, *front) as processes:
        server = LoadedServer("http://a", [psutil.Process(), *processes])
        assert server.proxy == proxy
        assert server.ingress_bytes > 1 << 20


def test_one_ingress_is_needed() -> None:
    with pytest.raises(ValueError, match="0 ingress processes"):
        LoadedServer("http://a", [psutil.Process()])
    with running(INGRESS, INGRESS) as processes, pytest.raises(ValueError, match="2 ingress"):
        LoadedServer("http://a", processes)


def test_ingress_and_proxies_are_counted_and_nobody_else() -> None:
    with running(INGRESS, PYTHON_PROXY, "another") as processes:
        spent = LoadedServer("http://a", processes).spent()
        assert 0.2 <= spent.cpu_s < 0.3
        assert spent.queue_s >= 0


def test_what_ended_threads_had_taken_is_not_given_back() -> None:
    later, earlier = Spent(cpu_s=2.0, queue_s=1.0), Spent(cpu_s=1.5, queue_s=3.0)
    assert later.since(earlier) == Spent(cpu_s=0.5, queue_s=0.0)
