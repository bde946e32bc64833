"""A Ray of the server's own, which nobody else on the machine or the network gets at.

Left to itself Ray listens on every interface, opens its session folders to all users on purpose,
writes its token as any other file, and is never quite idle.
"""

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from engine.errors import ConfigError

# of all that a server's processes write
UMASK = 0o077
_TOKEN_PATH, _FOLDER = "RAY_AUTH_TOKEN_PATH", "RAY_TMPDIR"
# without clusters, which have that name where they are no matter of course, Ray keeps to loopback
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
# what is looked at often on a large cluster costs an idle node a third of its CPU time
_QUIET = {
    # until Serve's controller looks again at replicas and proxies; 0.1 of its own
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.3",
    # events of Ray's tasks, which nobody asks for here
    "RAY_task_events_report_interval_ms": "0",
}


def own_ray(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a Ray that no other node joins; what is set already stays.

    Raises:
        ConfigError: if there is no place for its files.
    """
    hide_token(environment)
    folder = {} if _FOLDER in environment else {_FOLDER: str(_private_folder(environment))}
    return {**_LOOPBACK, **_QUIET, **folder, **environment}


def hide_token(environment: Mapping[str, str]) -> None:
    """Take the rights of others from the token that opens Ray, if it has been written already."""
    given = environment.get(_TOKEN_PATH)
    path = Path(given) if given else Path.home() / ".ray" / "auth_token"
    # there may be none, or it is another user's
    with suppress(OSError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & UMASK:
            path.chmod(mode & ~UMASK)


def _private_folder(environment: Mapping[str, str]) -> Path:
    """Make a folder for Ray's sessions that only this user may enter."""
    # paths of Ray's sockets are long, and must be shorter than 108 characters
    path = Path(environment.get("TMPDIR", "/tmp")) / f"pagoda-{os.getuid()}"
    try:
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
    except OSError as error:
        raise ConfigError(
            f"{path}, for Ray's files, cannot be made ({error.strerror}); set {_FOLDER}"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ConfigError(
            f"{path}, for Ray's files, is not a folder of this user; delete it, or set {_FOLDER}"
        )
    path.chmod(0o700)
    return path
