"""HTTP from a command to a server: where it is, its keys, and what its errors mean."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from app.command.environment import own_environment
from app.command.start.server_folder import RunningServer, running_folders
from engine.errors import ConfigError

DEFAULT_URL = "http://127.0.0.1:8000"
# a key for servers that want one
KEY_VARIABLE = "PAGODA_API_KEY"
# exit code of commands that find no server, or none that is ready
NOT_READY = 3
_CONNECT_S = 5.0


class NoServer(Exception):
    """Nothing answers, or not yet; the text says where and what to do."""


class Refused(Exception):
    """A server has answered with an error; the text is the server's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTarget:
    """A server and what opens it.

    Attributes:
        url: without a slash at its end.
        key: of a tenant; operator_key: for `/metrics`; empty for none.
    """

    url: str
    key: str = ""
    operator_key: str = ""


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add how a server is named."""
    group = parser.add_argument_group("server")
    group.add_argument(
        "--url",
        help="of the server (default: that of the latest `pagoda serve` of this user on this "
        f"machine, otherwise {DEFAULT_URL})",
    )
    group.add_argument(
        "--key-file",
        type=Path,
        help=f"file whose first line is the API key (default: the variable {KEY_VARIABLE})",
    )


def find_target(arguments: argparse.Namespace) -> ServerTarget:
    """The server that a command is for.

    Raises:
        ConfigError: if a file of keys cannot be read.
    """
    running = [state for _, state in running_folders()]
    if arguments.url is None:
        server = running[0] if running else None
        url = server.url if server is not None else DEFAULT_URL
    else:
        url = arguments.url.rstrip("/").removesuffix("/v1")
        server = next((each for each in running if each.url == url), None)
    key = own_environment().get(KEY_VARIABLE, "")
    if arguments.key_file is not None:
        key = first_line(arguments.key_file)
    return ServerTarget(url=url, key=key, operator_key=operator_key(server))


def operator_key(server: RunningServer | None) -> str:
    """What opens `/metrics` of a server of this user; empty if nothing is known."""
    if server is None or not server.operator_keys_file:
        return ""
    try:
        return first_line(Path(server.operator_keys_file))
    except ConfigError:
        return ""


def first_line(path: Path) -> str:
    """The first key of a file.

    Raises:
        ConfigError: if there is none.
    """
    try:
        lines = path.expanduser().read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise ConfigError(f"{path} has no key; write one a line")
    return keys[0]


@contextmanager
def connected(target: ServerTarget, *, timeout_s: float | None = None) -> Iterator["Connection"]:
    """A connection that is closed at the end.

    Args:
        timeout_s: for answers; None for as long as they take.
    """
    timeout = httpx.Timeout(timeout_s, connect=_CONNECT_S)
    # certificates take longer to read than most answers, and without TLS nobody looks at them
    verify = not target.url.lower().startswith("http:")
    # proxy variables are for the internet: many catch loopback addresses as well
    with httpx.Client(
        base_url=target.url, timeout=timeout, trust_env=False, verify=verify
    ) as client:
        yield Connection(client, target)


class Connection:
    """Requests to a server, whose failures are `NoServer` and `Refused`."""

    def __init__(self, client: httpx.Client, target: ServerTarget) -> None:
        self._client, self._target = client, target

    def get(self, path: str) -> Any:
        """The JSON that a path answers with."""
        return self._json(lambda: self._client.get(path, headers=self._headers()))

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON that a path answers a body with."""
        return self._json(lambda: self._client.post(path, json=body, headers=self._headers()))

    def delete(self, path: str) -> Any:
        """The JSON that a path answers with when something is deleted."""
        return self._json(lambda: self._client.delete(path, headers=self._headers()))

    def metrics(self) -> str | None:
        """The text of `/metrics`; None where this user may not see it."""
        key = self._target.operator_key or self._target.key
        headers = {"authorization": f"Bearer {key}"} if key else {}
        with self._errors():
            response = self._client.get("/metrics", headers=headers)
        if response.status_code in (401, 404):
            return None
        self._check(response)
        return response.text

    def is_ready(self) -> bool:
        """Whether the server takes requests."""
        with self._errors():
            return bool(self._client.get("/health").status_code == 200)

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[str]:
        """The data of the events that a path answers with, without the one that ends them."""
        with (
            self._errors(),
            self._client.stream("POST", path, json=body, headers=self._headers()) as response,
        ):
            if response.status_code != 200:
                response.read()
                self._check(response)
            for line in response.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield line.removeprefix("data: ")

    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._target.key}"} if self._target.key else {}

    def _json(self, ask: Callable[[], httpx.Response]) -> Any:
        with self._errors():
            response = ask()
        self._check(response)
        return response.json()

    def _check(self, response: httpx.Response) -> None:
        if response.status_code < 400:
            return
        try:
            message = str(response.json()["error"]["message"])
        except (ValueError, KeyError, TypeError):
            message = response.text[:200].strip() or response.reason_phrase
        if response.status_code == 401:
            message += f"; give it with --key-file, or in the variable {KEY_VARIABLE}"
        if response.status_code == 503:
            raise NoServer(f"{self._target.url} is not ready: {message}")
        raise Refused(f"{response.status_code}: {message}")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        url = self._target.url
        try:
            yield
        except httpx.ConnectError as error:
            raise NoServer(
                f"nothing answers at {url} ({error}); start a server with `pagoda serve`, or give "
                "--url"
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NoServer(f"{url} did not answer: {error or type(error).__name__}") from error
