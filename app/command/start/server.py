"""Runs a checked configuration: its log in a file, what matters on the screen."""

import os
import sys
import time
from pathlib import Path

import psutil

from app.command.client.connection import Connection, NoServer, Refused, ServerTarget, first_line
from app.command.client.metrics import read_snapshot
from app.command.ray_node import joined_node, own_node
from app.command.serve_run import Patience, ServeRun
from app.command.start.banner import Facts, banner, short
from app.command.start.display import Display
from app.command.start.plan import ServePlan
from app.command.start.server_folder import RunningServer
from app.command.start.watcher import Watcher
from app.settings.config import parse_config
from app.settings.serve_file import applications

# of its log, where a server that has ended gave no reason
_LAST_LINES = 5


class Server:
    """One start of a server, to its end."""

    def __init__(
        self,
        plan: ServePlan,
        display: Display,
        address: str,
        environment: dict[str, str],
        *,
        drain_calls_s: float,
        shows_all: bool,
    ) -> None:
        """Take note of what to run.

        Args:
            address: of the Ray cluster, or `local` for one of its own.
            drain_calls_s: that a drain may take beside what open requests have.
        """
        self._plan, self._display = plan, display
        self._address, self._environment = address, environment
        self._drain_calls_s = drain_calls_s
        self._shows_all = shows_all
        self._started_s = time.monotonic()
        keys = plan.app.api_keys_file
        operators = plan.app.operator_keys_file
        self._target = ServerTarget(
            url=plan.url,
            key=first_line(keys) if keys is not None else "",
            operator_key=first_line(operators) if operators is not None else "",
        )

    def run(self, started_s: float) -> int:
        """Serve until the end; return the exit code.

        Args:
            started_s: `time.monotonic` when the command was started.
        """
        self._started_s = started_s
        folder = self._plan.folder
        self._display.say(f"  log       {short(folder.log)}")
        folder.write_state(self._state())
        with folder.log.open("ab") as log:
            watcher = Watcher(
                folder.log, self._display, self._target, self._ready, shows_all=self._shows_all
            )
            watcher.start()
            try:
                code = self._serve_run(log.fileno()).run()
            finally:
                watcher.stop()
                self._display.still()
        if code == 1:
            self._explain(folder.log, has_reason=watcher.num_errors > 0)
        return code

    def _serve_run(self, log: int) -> ServeRun:
        is_own = self._address == "local"
        config = str(self._plan.config)
        drains = [parse_config(args).drain_s for _, args in applications(self._plan.config)]
        drain_s = max(drains)
        drain = [sys.executable, "-m", "app.serve.drain", "--seconds", f"{drain_s:g}", "--address"]
        ray = ["--own-ray"] if is_own else ["--address", self._address]
        if is_own and self._plan.has_dashboard:
            ray.append("--dashboard")
        if is_own and self._plan.num_gpus:
            ray += ["--gpus", str(self._plan.num_gpus)]
        return ServeRun(
            [sys.executable, "-m", "app.serve.run", *ray, config],
            self._environment,
            own_node() if is_own else joined_node(self._address),
            Patience(drain_s=drain_s + self._drain_calls_s if drain_s else 0.0),
            drain=drain,
            output=log,
        )

    def _state(self) -> RunningServer:
        operators = self._plan.app.operator_keys_file
        return RunningServer(
            pid=os.getpid(),
            created_s=psutil.Process().create_time(),
            url=self._plan.url,
            model=self._plan.app.model_id,
            config=str(self._plan.shown.absolute()),
            operator_keys_file="" if operators is None else str(operators.expanduser().absolute()),
        )

    def _ready(self, connection: Connection) -> None:
        """Say where the server is and what fits."""
        self._display.still()
        facts = self._facts(connection)
        seconds = time.monotonic() - self._started_s
        self._display.say("\n".join(banner(facts, seconds)))

    def _facts(self, connection: Connection) -> Facts:
        plan, engine = self._plan, self._plan.engine
        assert engine is not None, "a plan is checked before it is served"
        max_model_len, snapshot = engine.scheduler.max_model_len, None
        try:
            # workers may have clipped the context to the memory of their GPUs
            max_model_len = int(connection.get("/v1/models")["data"][0]["max_model_len"])
            text = connection.metrics()
            snapshot = read_snapshot(text) if text is not None else None
        except (NoServer, Refused, KeyError, IndexError, TypeError):
            pass
        return Facts(
            url=plan.url,
            host=plan.address[0],
            model=plan.app.model_id,
            max_model_len=max_model_len,
            max_num_seqs=engine.max_num_seqs,
            has_chat=plan.has_chat,
            capacity_slots=snapshot.capacity_slots if snapshot is not None else 0,
            block_size=engine.block_size,
            num_replicas=snapshot.num_replicas if snapshot is not None else 1,
            api_keys_file=plan.app.api_keys_file,
            has_page=plan.app.ui.enabled,
        )

    def _explain(self, log: Path, *, has_reason: bool) -> None:
        if not has_reason:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            for line in [line for line in lines if line.strip()][-_LAST_LINES:]:
                self._display.say(f"  {line}")
        self._display.say(f"the whole log is {log}")
