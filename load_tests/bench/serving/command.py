"""Command `serving`: our server and a peer's, side by side, loaded over HTTP by turns.

All servers run all the time, each with its share of the card or on the same cores, and one at a
time is loaded: what drifts on the machine counts for all of them. Each case is measured several
times, and the medians are compared. Then the engine of ours has the same cases without its server:
what HTTP adds.

A pass is printed and written when it ends, and the table before the servers are stopped: what was
measured is there if the run is cut. The times of all tokens are in a file of their own.
"""

import argparse
import asyncio
import gzip
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import psutil
import yaml

from engine.config import DType
from load_tests import report
from load_tests.bench.serving import in_process
from load_tests.bench.serving.cases import add_load, cases_of, order_of, warm_up
from load_tests.bench.serving.contenders import (
    OURS,
    VLLM,
    Contender,
    ServerLimits,
    pagoda,
    vllm,
    vllm_on_cpu,
)
from load_tests.bench.serving.passes import MEASURES, Pass, compare, pass_of
from load_tests.bench.startup.process_tree import cpu_by_process
from load_tests.bench.startup.server_process import ServerProcess
from load_tests.http.drive import LoadRun
from load_tests.http.report import write_requests
from load_tests.http.session import Case, LoadSettings, drive
from load_tests.model_folders import model_folder
from load_tests.options import add_model, at_least, positive

# ours by itself, beside its engine in process
NOBODY = "none"
EXAMPLE = "python -m load_tests serving --model DIR --device cuda --peer vllm --rate 15,30"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `serving`."""
    add_model(parser)
    servers = parser.add_argument_group("servers")
    servers.add_argument(
        "--peer",
        choices=(VLLM, OURS, NOBODY),
        default=OURS,
        help="what ours is raced against; a second one of ours shows the noise",
    )
    servers.add_argument("--vllm-packages", type=Path, metavar="DIR", help="where vLLM is")
    servers.add_argument(
        "--vllm-python",
        type=Path,
        metavar="PATH",
        help="Python of an environment where vLLM's CPU build is installed, on a CPU",
    )
    servers.add_argument(
        "--vllm-options", nargs="*", default=[], metavar="WORD", help="further ones of `vllm serve`"
    )
    for words, whose in (("--set", "ours"), ("--peer-set", "the second one of ours")):
        servers.add_argument(
            words, nargs="*", default=[], metavar="NAME=VALUE", help=f"options of {whose}, as YAML"
        )
    servers.add_argument("--port", type=at_least(1), default=8100, help="and the next one")
    servers.add_argument("--max-num-seqs", type=at_least(1), default=512, help="in a batch")
    servers.add_argument("--max-num-batched-tokens", type=at_least(1), default=2048, help="a step")
    servers.add_argument("--max-model-len", type=at_least(64), default=4096, help="tokens")
    servers.add_argument(
        "--gpu-memory-fraction", type=positive, default=0.44, help="of the card, for each server"
    )
    servers.add_argument("--dtype", choices=get_args(DType), help="of all (default: their own)")
    servers.add_argument("--threads", type=at_least(1), default=1, help="of each, on a CPU")
    servers.add_argument(
        "--without-in-process", action="store_true", help="the servers only, not their engine"
    )
    servers.add_argument("--start-limit-s", type=positive, default=300.0, help="give up after this")
    add_load(parser.add_argument_group("load"))
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Race, print the table and write the passes; 1 if one is not valid or a request failed."""
    if args.peer == VLLM and args.device == "cpu" and args.vllm_python is None:
        raise ValueError("--peer vllm on a CPU needs --vllm-python, where its CPU build is")
    files, cases = report.start(args, "serving"), cases_of(args)
    with tempfile.TemporaryDirectory() as scratch:
        race = ServedRace(files, _contenders(args, Path(scratch)))
        with ExitStack() as stack:
            servers = [stack.enter_context(_started(it, files, args)) for it in race.contenders]
            for contender, server in zip(race.contenders, servers, strict=True):
                _measure(args, contender, [server], warm_up(args))
            # before the servers end, also if the race is cut
            stack.callback(race.show)
            for number in range(args.passes):
                for case in cases:
                    _take_turns(race, args, servers, case, number)
        if not args.without_in_process:
            _in_process(race, args, cases)
            race.show()
    return race.finish()


@dataclass(frozen=True, slots=True)
class Loaded:
    """A pass, and what the client has recorded in it."""

    figures: Pass
    run: LoadRun


class ServedRace:
    """Passes so far; each is printed and written as it comes, so that a run may be cut."""

    def __init__(self, files: report.Report, contenders: list[Contender]) -> None:
        self.contenders = contenders
        self._files = files
        self._passes: list[Pass] = []

    def add(self, loaded: Loaded) -> None:
        """Print and write a pass, and the times of its tokens."""
        one = loaded.figures
        number = sum((one.server, one.case) == (it.server, it.case) for it in self._passes)
        self._passes.append(one)
        figures = {name: round(getattr(one, name), 1) for name in MEASURES}
        words = " ".join(f"{name}={value:,}" for name, value in figures.items())
        print(f"{one.server}, {one.case}: {words}{_note(one)}", flush=True)
        self._files.write(self._document())
        labels = {"server": one.server, "case": one.case, "pass": number}
        with gzip.open(self._files.path("_requests.jsonl.gz"), "at", encoding="utf-8") as file:
            write_requests(file, labels, loaded.run.records)

    def show(self) -> None:
        """Print the medians of the passes so far."""
        names = self._names()
        beside = in_process.NAME if self._has_in_process and in_process.NAME not in names else None
        columns = ("case", "measure", *names, f"{names[0]} / {names[1]}")
        columns = columns if beside is None else (*columns, beside)
        rows = compare(self._passes, names, beside)
        report.print_table("Medians of the passes, by turns", columns, rows)

    def finish(self) -> int:
        """Write what is left to write; 1 if a pass is not valid or a request failed."""
        rows = compare(self._passes, self._names())
        headline = ", ".join(f"{row[0]} {row[1]} {row[4]}" for row in rows if "ttft_p99" in row[1])
        self._files.finish(self._document(), headline)
        return int(any(one.fault for one in self._passes))

    @property
    def _has_in_process(self) -> bool:
        return any(one.server == in_process.NAME for one in self._passes)

    def _names(self) -> list[str]:
        names = [contender.name for contender in self.contenders]
        return names if len(names) > 1 else [*names, in_process.NAME]

    def _document(self) -> dict[str, object]:
        commands = {contender.name: contender.command for contender in self.contenders}
        return {"commands": commands, "passes": [asdict(one) for one in self._passes]}


def _note(one: Pass) -> str:
    return f" NOT VALID: {one.fault}" if one.fault else ""


def _take_turns(
    race: ServedRace,
    args: argparse.Namespace,
    servers: list[ServerProcess],
    case: Case,
    number: int,
) -> None:
    """Load one server after the other with a case."""
    for place in order_of(len(servers), number, args.peer_passes):
        idle = servers[:place] + servers[place + 1 :]
        race.add(_measure(args, race.contenders[place], [servers[place], *idle], case))


def _in_process(race: ServedRace, args: argparse.Namespace, cases: list[Case]) -> None:
    """Measure the engine of our server without the server, once that has given its memory back."""
    print("starting the engine in process", flush=True)
    config = in_process.served_config(Path(race.contenders[0].command[-1]))
    with in_process.started(config) as engine:
        in_process.run_case(engine, warm_up(args), args.vocab_size, args.seed)
        for case in cases:
            own_s = time.process_time()
            loaded = in_process.run_case(engine, case, args.vocab_size, args.seed)
            own_s = time.process_time() - own_s
            figures = pass_of(
                in_process.NAME, case.label, loaded, server_cpu_s=own_s, client_cpu_s=0.0
            )
            race.add(Loaded(figures, loaded))


def _contenders(args: argparse.Namespace, scratch: Path) -> list[Contender]:
    limits = ServerLimits(
        model=model_folder(args.model, scratch),
        device=args.device,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_model_len=args.max_model_len,
        gpu_memory_fraction=args.gpu_memory_fraction,
        dtype=args.dtype,
        num_threads=args.threads,
    )
    ours = pagoda(OURS, limits, args.port, scratch, options_of(args.set))
    if args.peer == NOBODY:
        return [ours]
    if args.peer == VLLM and args.device == "cpu":
        return [ours, vllm_on_cpu(limits, args.port + 1, args.vllm_python, args.vllm_options)]
    if args.peer == VLLM:
        return [ours, vllm(limits, args.port + 1, args.vllm_packages, args.vllm_options)]
    again = options_of(args.peer_set)
    return [ours, pagoda(f"{OURS} again", limits, args.port + 1, scratch, again)]


def options_of(pairs: list[str]) -> dict[str, Any]:
    """Read NAME=VALUE, each value as YAML.

    Raises:
        ValueError: if one has no `=`.
    """
    for pair in pairs:
        if "=" not in pair:
            raise ValueError(f"'{pair}' is no option: write NAME=VALUE")
    return {name: yaml.safe_load(value) for name, value in (it.split("=", 1) for it in pairs)}


@contextmanager
def _started(
    contender: Contender, files: report.Report, args: argparse.Namespace
) -> Iterator[ServerProcess]:
    print(f"starting {contender.name}", flush=True)
    command, environment = list(contender.command), contender.full_environment()
    log = files.path(f"_{contender.name}.log".replace(" ", "_"))
    server = ServerProcess(command, contender.url, log, environment)
    try:
        seconds = server.seconds_until_healthy(args.start_limit_s)
        print(f"{contender.name} is ready after {seconds:.0f} s", flush=True)
        yield server
    finally:
        server.close()


def _measure(
    args: argparse.Namespace, contender: Contender, servers: list[ServerProcess], case: Case
) -> Loaded:
    """Load the first server with a case, while the others have nothing to do."""
    settings = LoadSettings(
        url=contender.url, vocab_size=args.vocab_size, seed=args.seed, drain_s=args.drain_s
    )
    before = [cpu_by_process(server.processes()) for server in servers]
    own_s = time.process_time()
    [result] = asyncio.run(drive(settings, [case]))
    own_s = time.process_time() - own_s
    server_s, *idle_s = map(_cpu_since, servers, before)
    figures = pass_of(
        contender.name,
        case.label,
        result.run,
        server_cpu_s=server_s,
        client_cpu_s=own_s,
        idle_cpu_s=sum(idle_s),
    )
    return Loaded(figures, result.run)


def _cpu_since(server: ServerProcess, before: dict[psutil.Process, float]) -> float:
    # also of processes that have begun meanwhile; of those that have ended nothing is known
    after = cpu_by_process(server.processes())
    return sum(cpu_s - before.get(process, 0.0) for process, cpu_s in after.items())
