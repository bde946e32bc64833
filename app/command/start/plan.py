"""What `pagoda serve` is about to serve: a file, with what the command line changes in it."""

import argparse
import math
import os
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from app.command.start.banner import example
from app.command.start.display import Display
from app.command.start.flags import given_options, with_options
from app.command.start.progress import StartStage
from app.command.start.server_folder import ServerFolder, make_folder
from app.models.checkpoint import expected_tensors
from app.preflight import check_file
from app.settings.config import AppConfig, parse_config
from app.settings.serve_file import applications, http_address, read_file
from app.text.tokenizer import Tokenizer
from engine.config import DTYPE_BYTES, EngineConfig
from engine.errors import ConfigError, InvalidRequest

_DEFAULT = Path("serve_config.yaml")
# tokens that the answer to the request of the banner needs at least
_ANSWER_LEN = 16


@dataclass(slots=True, kw_only=True)
class ServePlan:
    """A configuration that is ready to be served.

    Attributes:
        shown: the file that the user knows.
        folder: of the server; its `config` is what is served.
        engine: of the first application, once it was checked.
        num_gpus: that one replica of each application needs, once they were checked.
        has_chat: whether its model has a chat template.
        has_dashboard: whether a Ray of its own is to have Ray's dashboard.
    """

    shown: Path
    folder: ServerFolder
    engine: EngineConfig | None = None
    num_gpus: int = 0
    has_chat: bool = True
    has_dashboard: bool = False

    @property
    def config(self) -> Path:
        """The file that is served."""
        return self.folder.config

    @property
    def app(self) -> AppConfig:
        """Options of the first application."""
        return parse_config(applications(self.config)[0][1])

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of HTTP."""
        return http_address(self.config)

    @property
    def url(self) -> str:
        """Of the first application, as a client on this machine reaches it."""
        host, port = self.address
        content = read_file(self.config)
        scheme = "https" if (content.get("http_options") or {}).get("ssl_certfile") else "http"
        prefix = str(content["applications"][0].get("route_prefix") or "/").rstrip("/")
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(
            host, f"[{host}]" if ":" in host else host
        )
        return f"{scheme}://{host}:{port}{prefix}"

    def check(self, display: Display, *, needs_key: bool, with_weights: bool) -> None:
        """Check models and machine, fetch what is missing, and say what will be served.

        Args:
            needs_key: make a key that opens `/metrics` where the file names none.

        Raises:
            ConfigError: with one message that says what to change.
        """
        version, name = metadata.version("pagoda"), self.app.model_id
        display.say(f"Pagoda {version} · {name} · {self.shown}")
        engines = check_file(self.config, with_weights=with_weights, shown=self.shown)
        self.engine = engine = engines[0]
        self.num_gpus = sum(each.tensor_parallel_size for each in engines if each.device == "cuda")
        value_bytes = DTYPE_BYTES[engine.dtype]
        parameters = sum(math.prod(shape) for shape in expected_tensors(engine.model).values())
        device = "CPU" if engine.device == "cpu" else f"{engine.tensor_parallel_size} GPU"
        detail = f"{parameters * value_bytes / 1e6:,.0f} MB in {engine.dtype} on {device}"
        display.show(StartStage(name="model", detail=detail, is_over=True))
        self._check_promise(display, engine)
        if needs_key:
            self._add_key()

    def _check_promise(self, display: Display, engine: EngineConfig) -> None:
        """Warn if the request that is shown when the server is ready would be refused."""
        tokenizer = Tokenizer.load(Path(engine.model_path))
        self.has_chat = bool(tokenizer.template_source)
        body = example("", has_chat=self.has_chat)[1]
        try:
            if self.has_chat:
                messages: Any = body["messages"]
                num_tokens = len(tokenizer.encode_chat(messages))
            else:
                num_tokens = len(tokenizer.encode(str(body["prompt"])))
        except InvalidRequest as error:
            display.say(f"warning: the chat template refuses even a greeting: {error}")
            return
        longest = engine.scheduler.max_model_len
        if num_tokens + _ANSWER_LEN > longest:
            display.say(
                f"warning: a greeting takes {num_tokens} tokens and max_model_len is {longest}: "
                f"too few for an answer; raise max_model_len (or kv_cache_gib, num_blocks) to "
                f"{num_tokens + _ANSWER_LEN} at least"
            )

    def _add_key(self) -> None:
        content = read_file(self.config)
        for app in content["applications"]:
            args = app.get("args") or {}
            if args.get("operator_keys_file") is None:
                key_file = self.folder.key_file
                path = key_file if key_file.exists() else self.folder.write_key()
                app["args"] = args | {"operator_keys_file": str(path)}
        _write(self.config, content)


def make_plan(arguments: argparse.Namespace, *, is_own: bool, stack: ExitStack) -> ServePlan:
    """Put file and command line together.

    Args:
        arguments: of `pagoda serve`.
        stack: ends a folder that is not to be kept.

    Raises:
        ConfigError: if the file cannot be used, or an option is none.
    """
    shown, options = _DEFAULT, given_options(arguments)
    if arguments.what is not None:
        if arguments.what.endswith((".yaml", ".yml")):
            shown = Path(arguments.what)
        else:
            options.setdefault("model", arguments.what)
    found = applications(shown)
    content = read_file(shown)
    if options:
        if len(found) > 1:
            raise ConfigError(
                f"{shown} has {len(found)} applications, and options on the command line do not "
                "say for which; write them into the file"
            )
        app = content["applications"][0]
        app["args"] = with_options(app.get("args") or {}, options)
    http = {"host": arguments.host, "port": arguments.port}
    if given := {name: value for name, value in http.items() if value is not None}:
        content["http_options"] = (content.get("http_options") or {}) | given
    if arguments.dry_run:
        folder = ServerFolder(Path(stack.enter_context(TemporaryDirectory(prefix="pagoda-"))))
    else:
        folder = make_folder()
        stack.callback(folder.discard_unused)
    _write(folder.config, content)
    return ServePlan(shown=shown, folder=folder, has_dashboard=arguments.dashboard)


def _write(path: Path, content: Any) -> None:
    with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
        yaml.safe_dump(content, file, sort_keys=False, allow_unicode=True)
