"""The level from which a process logs, changed for a while and then set back by itself."""

import logging
import threading

LEVELS = ("debug", "info", "warning", "error")
MAX_TTL_S = 3600.0
# the loggers that are ours
PACKAGES = ("app", "engine")


class LogLevel:
    """Changes the level of our loggers in this process."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None
        self._before: dict[str, int] = {}

    def set(self, level: str, ttl_s: float) -> None:
        """Log from a level on, until `ttl_s` seconds have passed or this is called again."""
        self.reset()
        self._before = {name: logging.getLogger(name).level for name in PACKAGES}
        for name in PACKAGES:
            logging.getLogger(name).setLevel(level.upper())
        self._timer = threading.Timer(ttl_s, self.reset)
        self._timer.daemon = True
        self._timer.start()

    def reset(self) -> None:
        """Go back to the level of before; may be called again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for name, level in self._before.items():
            logging.getLogger(name).setLevel(level)
        self._before = {}
