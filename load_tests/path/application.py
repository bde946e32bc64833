"""The application as it is served, with engines that have no model: see `PacedWorker`."""

from typing import Any

from app.main import build_with


def build(args: dict[str, Any]) -> Any:
    """See `app.main.build`, whose result this is."""
    return build_with(args, worker_factory="load_tests.path.paced_worker:load_worker")
