"""The folder of a server on this machine: its log, its configuration, how it is reached.

`pagoda serve` makes one for each start; `pagoda status`, `top`, `logs` and `stop` find it there.
"""

import json
import os
import secrets
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import mkdtemp

import psutil

from app.models.cache_folder import default_cache
from engine.errors import ConfigError

# folders of servers that have ended are kept so that their logs can be read
KEPT = 10
_STATE, _LOG, _KEY, _CONFIG = "server.json", "serve.log", "operator_key", "serve_config.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """What other commands must know of a server.

    Attributes:
        pid, created_s: of the process `pagoda serve`; the second tells it from a later one.
        url: of the first application, without a slash at its end.
        model: that clients ask for.
        config: the file that the user gave.
        operator_keys_file: whose first line opens `/metrics`; empty for none.
    """

    pid: int
    created_s: float
    url: str
    model: str
    config: str
    operator_keys_file: str = ""

    @property
    def runs(self) -> bool:
        """Whether its process is still there."""
        try:
            return bool(psutil.Process(self.pid).create_time() == self.created_s)
        except psutil.Error:
            return False


class ServerFolder:
    """A folder that only this user may enter."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / _LOG
        self.config = path / _CONFIG
        self.key_file = path / _KEY

    def write_key(self) -> Path:
        """Make a key that opens `/metrics` and `/admin/`; returns the file that has it."""
        with os.fdopen(os.open(self.key_file, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(f"{secrets.token_urlsafe(32)}\n")
        return self.key_file

    def write_state(self, server: RunningServer) -> None:
        """Let other commands find the server."""
        partial = self.path / f".{_STATE}"
        partial.write_text(json.dumps(asdict(server)), encoding="utf-8")
        partial.replace(self.path / _STATE)

    def discard_unused(self) -> None:
        """Delete the folder if no server was started in it."""
        if not (self.path / _STATE).exists():
            shutil.rmtree(self.path, ignore_errors=True)

    def read_state(self) -> RunningServer | None:
        """What was written; None if that is nothing that can be read."""
        try:
            fields = json.loads((self.path / _STATE).read_text(encoding="utf-8"))
            return RunningServer(**fields)
        except (OSError, ValueError, TypeError):
            return None


def servers_folder() -> Path:
    """Where the folders of all servers of this user are."""
    return default_cache() / "servers"


def make_folder(parent: Path | None = None) -> ServerFolder:
    """Make the folder of a server that is about to start, and delete the oldest ones.

    Raises:
        ConfigError: if it cannot be made.
    """
    parent = servers_folder() if parent is None else parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        # which only this user may enter
        path = Path(mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=parent))
    except OSError as error:
        raise ConfigError(
            f"{parent}, for the logs of servers, cannot be written ({error.strerror}); "
            "set XDG_CACHE_HOME to a folder that can be written"
        ) from error
    _delete_oldest([each for each in all_folders(parent) if each.path != path])
    return ServerFolder(path)


def all_folders(parent: Path | None = None) -> list[ServerFolder]:
    """The folders of all servers of this user, the latest first."""
    parent = servers_folder() if parent is None else parent
    with suppress(OSError):
        return [ServerFolder(path) for path in sorted(parent.iterdir(), reverse=True)]
    return []


def running_folders(parent: Path | None = None) -> list[tuple[ServerFolder, RunningServer]]:
    """Servers of this user that run on this machine, the latest first."""
    found = ((folder, folder.read_state()) for folder in all_folders(parent))
    return [(folder, state) for folder, state in found if state is not None and state.runs]


def _delete_oldest(folders: Sequence[ServerFolder]) -> None:
    ended = []
    for folder in folders:
        state = folder.read_state()
        if state is None or not state.runs:
            ended.append(folder)
    for folder in ended[KEPT:]:
        shutil.rmtree(folder.path, ignore_errors=True)
