"""Where the processes of a gang log: their standard error, which Ray hands on."""

import logging
import sys
from typing import TextIO

import ray

# as Serve writes it, so that one reader takes all lines
_FORMAT = "%(levelname)s %(asctime)s {name} -- %(message)s"


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to what standard error is at the moment, and keeps no file."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        self.stream = sys.stderr
        super().emit(record)


def log_from_actor(name: str) -> None:
    """Have the process of an actor write its own lines, and leave any other process as it is."""
    if ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None:
        log_to_standard_error(name)


def log_to_standard_error(name: str) -> None:
    """Have this process's own loggers write lines from INFO on, once.

    Args:
        name: of the process, in each line.
    """
    for package in ("engine", "kernels"):
        logger = logging.getLogger(package)
        if not logger.handlers:
            handler = _StandardError()
            handler.setFormatter(logging.Formatter(_FORMAT.format(name=name)))
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
