"""Ends a client's command with what went wrong and an exit code."""

import argparse
import sys
from collections.abc import Callable

from app.command.client.connection import NOT_READY, NoServer, Refused
from engine.errors import ConfigError


def with_errors(run: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    """Run a command; its failures become a line on standard error and an exit code."""
    try:
        return run(arguments)
    except NoServer as error:
        return _end(error, NOT_READY)
    except (Refused, ConfigError) as error:
        return _end(error, 1)


def _end(error: Exception, code: int) -> int:
    sys.stderr.write(f"error: {error}\n")
    return code
