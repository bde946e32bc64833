"""The server under load: `pagoda serve` of a small model, with API keys and one for operators."""

import argparse
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from load_tests.bench.startup.server_process import ServerProcess
from load_tests.faults.server import serving_options, write_config
from load_tests.options import add_server, at_least


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of a server."""
    server = parser.add_argument_group("server")
    add_server(server)
    server.add_argument("--port", type=at_least(1), default=8000, help="where it is to serve")
    server.add_argument(
        "--proxy",
        choices=("haproxy", "python"),
        help="what streams (default: as `pagoda serve` chooses)",
    )
    server.add_argument("--max-num-seqs", type=at_least(1), default=16, help="in a batch")


def write_files(
    args: argparse.Namespace,
    folder: Path,
    model: Path,
    keys: Sequence[str],
    operator: str,
    options: dict[str, Any],
) -> Path:
    """Write the files of a server; returns its configuration.

    Args:
        keys: lines of the file of API keys.
        operator: key of an operator.
        options: of the application, beside those that every small server has.
    """
    (folder / "keys").write_text("\n".join(keys))
    (folder / "operators").write_text(operator)
    fixed = {
        "api_keys_file": str(folder / "keys"),
        "operator_keys_file": str(folder / "operators"),
        "max_num_seqs": args.max_num_seqs,
        "drain_s": 0.0,
    }
    config = folder / "serve_config.yaml"
    options = serving_options(model, args.device) | fixed | options
    write_config(args.config, config, port=args.port, replicas=1, options=options)
    return config


@contextmanager
def pagoda_serve(args: argparse.Namespace, config: Path, log: Path) -> Iterator[ServerProcess]:
    """Run `pagoda serve` until it is healthy; whatever is left of it afterwards is ended."""
    proxy = ["--proxy", args.proxy] if args.proxy else []
    command = [sys.executable, "-m", "app.command", "serve", str(config), *proxy]
    server = ServerProcess(command, f"http://127.0.0.1:{args.port}", log, dict(os.environ))
    try:
        server.seconds_until_healthy(args.start_limit_s)
        yield server
    finally:
        server.close()


async def scrape(
    session: aiohttp.ClientSession, url: str, operator: str, metric: str
) -> dict[str, float]:
    """Values of one of the server's metrics by their labels, without those of replicas."""
    headers = {"Authorization": f"Bearer {operator}"}
    async with session.get(f"{url}/metrics", headers=headers) as response:
        response.raise_for_status()
        return values_of(await response.text(), metric)


def values_of(text: str, metric: str) -> dict[str, float]:
    """Sums over all replicas, by the other labels; see `scrape`."""
    sums: dict[str, float] = {}
    for labels, value in re.findall(rf"^{metric}\{{([^}}]*)\}} (\S+)$", text, re.MULTILINE):
        own = [
            each for each in labels.split(",") if not each.startswith(("model_name=", "replica="))
        ]
        key = ",".join(own)
        sums[key] = sums.get(key, 0.0) + float(value)
    return sums
