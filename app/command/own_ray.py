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
# What Ray does all the time for a large cluster that somebody watches, on one node that is idle.
# Nothing here is what notices a fault
QUIET = {
    # until Serve's controller looks again at replicas and proxies; 0.1 of its own
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    # ms until Serve's processes hand their counters on; 100 of its own
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "5000",
    # events of Ray's tasks and statistics of its event loops, which nobody asks for here
    "RAY_task_events_report_interval_ms": "0",
    "RAY_event_stats": "0",
    "RAY_io_context_event_loop_lag_collection_interval_ms": "0",
    # until the raylet looks for garbage and ends workers without work, and the GCS asks it for
    # work that waits for a larger cluster; 100, 200 and 1000 of their own
    "RAY_raylet_check_gc_period_milliseconds": "2000",
    "RAY_kill_idle_workers_interval_ms": "2000",
    "RAY_gcs_pull_resource_loads_period_milliseconds": "10000",
    # until the log monitor lists the folder again, which it does ten times a second otherwise
    "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "0",
    "LOG_NAME_UPDATE_INTERVAL_S": "1",
    # ms until the agent weighs the node and its processes; 5000 of its own
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
    # s until Ray thinks about nodes for more work; 5 of its own
    "AUTOSCALER_UPDATE_INTERVAL_S": "60",
    # Ray's agents see the end of a pipe when the raylet ends, and need not look for it
    "RAY_enable_pipe_based_agent_to_parent_health_check": "1",
}
# what Ray and Serve measure of themselves, for Ray's exporter and its dashboard; of each request
# HAProxy would log two lines, and its manager in Python read one
_NO_METRICS = {"RAY_enable_metrics_collection": "0", "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0"}


def own_ray(environment: Mapping[str, str], *, has_metrics: bool = False) -> dict[str, str]:
    """Return the environment of a Ray that no other node joins; what is set already stays.

    Args:
        has_metrics: whether Ray collects metrics for its exporter.

    Raises:
        ConfigError: if there is no place for its files.
    """
    hide_token(environment)
    folder = {} if _FOLDER in environment else {_FOLDER: str(_private_folder(environment))}
    metrics = {} if has_metrics else _NO_METRICS
    return {**_LOOPBACK, **QUIET, **metrics, **folder, **environment}


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
