"""Ends the start of the application with one message if its configuration is wrong."""

from collections.abc import Iterator
from contextlib import contextmanager

from ray.serve.exceptions import RayServeException

from engine.errors import ConfigError


@contextmanager
def config_errors_without_traceback() -> Iterator[None]:
    """Make Serve report a ConfigError as its one message.

    Serve builds an application in a task. Any other exception out of it is retried three times
    and shown with the traceback of each try; of a RayServeException only the text is shown, once.
    """
    try:
        yield
    except ConfigError as error:
        raise RayServeException(f"configuration error: {error}") from None
