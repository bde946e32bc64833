"""Starts `serve run` as a user would, watches it come up, stops it, and leaves nothing behind."""

import json
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil

from load_tests.bench.startup.process_tree import ProcessTree, end, still_runs

# how often the server is asked whether it is there
POLL_S = 0.05
# how often its processes are listed while it starts; each time takes milliseconds of CPU
LIST_S = 1.0
REQUEST_TIMEOUT_S = 60.0
# a killed process is gone at once, unless the kernel waits for a device
_KILLED_S = 5.0
PROMPT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "stream": True}


class ServerProcess:
    """A running `serve run` and its processes.

    Attributes:
        port: where it listens.
        started_s: `time.perf_counter` when it was started.
    """

    def __init__(
        self,
        command: list[str],
        url: str,
        log: Path,
        env: dict[str, str],
        folder: Path | None = None,
    ) -> None:
        """Start the command in a process group of its own; its output goes to `log`.

        Args:
            folder: where it runs; None for this process's own.

        Raises:
            ValueError: if something answers at `url` already.
        """
        address = urlsplit(url)
        self._host, self.port = address.hostname or "127.0.0.1", address.port or 80
        if self._is_open():
            raise ValueError(f"something answers at {url} already; stop it or choose another port")
        self._log = log
        self.started_s = time.perf_counter()
        with log.open("wb") as output:
            self._root = psutil.Popen(
                command,
                stdout=output,
                stderr=output,
                env=env,
                cwd=folder,
                start_new_session=True,
                preexec_fn=_heed_interrupts,
            )
        self._tree = ProcessTree(self._root)

    def seconds_until_open(self, limit_s: float) -> float:
        """Wait for the port; seconds from the start."""
        return self._until("the port is open", self._is_open, limit_s)

    def seconds_until_healthy(self, limit_s: float) -> float:
        """Wait for /health to answer 200; seconds from the start."""
        return self._until("/health answers 200", self._is_healthy, limit_s)

    def seconds_until_first_token(self) -> float:
        """Ask for a streamed chat completion; seconds from the start to its first text.

        Raises:
            ValueError: if none came.
        """
        with self._client() as client:
            model = client.get("/v1/models").json()["data"][0]["id"]
            body, seconds = PROMPT | {"model": model}, None
            with client.stream("POST", "/v1/chat/completions", json=body) as response:
                # read to the end: a client that leaves early makes the server abort
                for line in response.iter_lines():
                    is_chunk = line.startswith("data: {")
                    if seconds is None and is_chunk and _has_text(json.loads(line[6:])):
                        seconds = time.perf_counter() - self.started_s
        if seconds is not None:
            return seconds
        raise ValueError(f"no token came: status {response.status_code}; {self._last_words()}")

    def processes(self) -> list[psutil.Process]:
        """List every process of this server that runs now."""
        return self._tree.alive()

    def interrupt(self) -> None:
        """Send what Ctrl-C sends."""
        self.send(signal.SIGINT)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the command that was started."""
        self._root.send_signal(number)

    def exit_code(self, limit_s: float) -> int:
        """Wait for the command to end; its exit code, negative if a signal ended it.

        Raises:
            psutil.TimeoutExpired: if it has not ended in time.
        """
        return int(self._root.wait(limit_s))

    def close(self, limit_s: float = 5.0) -> None:
        """End whatever still runs; what has not ended in time is killed, which is said."""
        killed = end(self.processes(), limit_s)
        if killed:
            print(f"killed, since they did not end: {', '.join(sorted(killed))}", flush=True)
        with suppress(psutil.TimeoutExpired):
            self._root.wait(_KILLED_S)

    def _until(self, what: str, is_true: Callable[[], bool], limit_s: float) -> float:
        list_at_s = 0.0
        while not is_true():
            if time.perf_counter() > list_at_s:
                list_at_s = time.perf_counter() + LIST_S
                self._tree.alive()
            if not still_runs(self._root):
                raise ValueError(f"the server ended before {what}; {self._last_words()}")
            if time.perf_counter() - self.started_s > limit_s:
                raise ValueError(f"not within {limit_s:g} s: {what}; {self._last_words()}")
            time.sleep(POLL_S)
        return time.perf_counter() - self.started_s

    def _is_open(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex((self._host, self.port)) == 0

    def _is_healthy(self) -> bool:
        try:
            with self._client() as client:
                return client.get("/health").status_code == 200
        except httpx.HTTPError:
            return False

    def _client(self) -> httpx.Client:
        # certificates, which nobody asks for here, take 50 ms of CPU to read, each time
        return httpx.Client(
            base_url=f"http://{self._host}:{self.port}",
            timeout=REQUEST_TIMEOUT_S,
            trust_env=False,
            verify=False,
        )

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join([f"the end of {self._log}:", *lines[-15:]])


@contextmanager
def serving(config: Path, url: str, log: Path, env: dict[str, str]) -> Iterator[ServerProcess]:
    """Run `serve run CONFIG` with a Ray of its own; whatever is left of it afterwards is ended."""
    server = ServerProcess(serve_command(config, "local"), url, log, env)
    try:
        yield server
    finally:
        server.close()


def serve_command(config: Path, address: str) -> list[str]:
    """The words that serve a file on the cluster at an address, or on one of its own (local)."""
    serve = Path(sys.executable).parent / "serve"
    return [str(serve), "run", "--address", address, str(config)]


def _heed_interrupts() -> None:
    # a shell that starts a job in the background makes it, and all its children, ignore SIGINT
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _has_text(chunk: dict[str, list[dict[str, dict[str, str]]]]) -> bool:
    return any(choice["delta"].get("content") for choice in chunk.get("choices", []))
