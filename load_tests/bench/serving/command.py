"""Command `serving`: our server and a peer's, side by side on one card, loaded over HTTP by turns.

All servers run all the time, each with its share of the card, and one at a time is loaded: what
drifts on the machine counts for all of them. Each case is measured several times, and the medians
are compared.
"""

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from load_tests import report
from load_tests.bench.serving.contenders import OURS, VLLM, Contender, ServerLimits, pagoda, vllm
from load_tests.bench.startup.server_process import ServerProcess
from load_tests.http.load import plan
from load_tests.http.metrics import LoadFigures
from load_tests.http.session import Case, LoadSettings, drive
from load_tests.model_folders import model_folder
from load_tests.options import add_model, at_least, not_negative, positive, several
from load_tests.traffic.latencies import Summary

EXAMPLE = "python -m load_tests serving --model DIR --device cuda --peer vllm --rate 15,30"
# measure -> its unit, and whether more of it is better
MEASURES: Mapping[str, tuple[str, bool]] = {
    "ttft_p50": ("ms", False),
    "ttft_p99": ("ms", False),
    "tpot_p50": ("ms", False),
    "gap_p99": ("ms", False),
    "tokens_per_s": ("tok/s", True),
    "server_cpu_s": ("s", False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One case on one server.

    Attributes:
        ttft_p50, ttft_p99: ms from when a request was due to its first token.
        tpot_p50: ms for each further token, of a request.
        gap_p99: ms between two chunks of a stream.
        tokens_per_s: output, over the whole pass.
        server_cpu_s: CPU seconds of all processes of the server.
        num_failed: requests without a complete answer.
        invalid: why the client spoiled the pass, or None.
    """

    server: str
    case: str
    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    gap_p99: float
    tokens_per_s: float
    server_cpu_s: float
    num_failed: int
    invalid: str | None

    @property
    def fault(self) -> str | None:
        """Why it does not count."""
        return self.invalid or (f"{self.num_failed} requests failed" if self.num_failed else None)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `serving`."""
    add_model(parser)
    servers = parser.add_argument_group("servers")
    servers.add_argument(
        "--peer",
        choices=(VLLM, OURS),
        default=OURS,
        help="what ours is raced against; a second one of ours shows the noise",
    )
    servers.add_argument("--vllm-packages", type=Path, metavar="DIR", help="where vLLM is")
    servers.add_argument(
        "--vllm-options", nargs="*", default=[], metavar="WORD", help="further ones of `vllm serve`"
    )
    servers.add_argument("--port", type=at_least(1), default=8100, help="and the next one")
    servers.add_argument("--max-num-seqs", type=at_least(1), default=512, help="in a batch")
    servers.add_argument("--max-num-batched-tokens", type=at_least(1), default=2048, help="a step")
    servers.add_argument("--max-model-len", type=at_least(64), default=4096, help="tokens")
    servers.add_argument(
        "--gpu-memory-fraction", type=positive, default=0.44, help="of the card, for each server"
    )
    servers.add_argument("--start-limit-s", type=positive, default=300.0, help="give up after this")
    _add_load(parser.add_argument_group("load"))
    report.add_arguments(parser)


def _add_load(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--rate", type=several(positive), default=[15.0, 30.0], help="Poisson arrivals per second"
    )
    group.add_argument(
        "--concurrency", type=several(at_least(1)), default=[256, 512], help="requests in flight"
    )
    group.add_argument("--passes", type=at_least(1), default=3, help="of each case on each server")
    group.add_argument("--duration-s", type=positive, default=15.0, help="arrivals of a rate")
    group.add_argument(
        "--turnover", type=at_least(1), default=3, help="requests of a case per one in flight"
    )
    group.add_argument("--lengths", default="sharegpt", help="see the command http")
    group.add_argument("--max-total-len", type=at_least(64), default=2048, help="of a request")
    group.add_argument("--drain-s", type=not_negative, default=60.0, help="after the last arrival")
    group.add_argument("--vocab-size", type=at_least(1), default=30000, help="ids are below it")
    group.add_argument("--seed", type=int, default=0, help="of lengths and prompts")


def run(args: argparse.Namespace) -> int:
    """Race, print the table and write the passes; 1 if one is not valid or a request failed."""
    cases = cases_of(args)
    files = report.start(args, "serving")
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        contenders = _contenders(args, Path(scratch))
        servers = [
            stack.enter_context(_started(contender, files.path(f"_{contender.name}.log"), args))
            for contender in contenders
        ]
        running = list(zip(contenders, servers, strict=True))
        passes = []
        for number in range(args.passes):
            for case in cases:
                # the one that begins changes, so that what the other leaves behind counts for both
                for contender, server in running if number % 2 == 0 else reversed(running):
                    passes.append(_measure(args, contender, server, case))
                    print(passes[-1], flush=True)
    names = [contender.name for contender in contenders]
    rows = list(compare(passes, names))
    columns = ("case", "measure", *names, f"{names[0]} / {names[1]}")
    report.print_table(f"Medians of {args.passes} passes, by turns", columns, rows)
    for one in passes:
        if fault := one.fault:
            print(f"NOT VALID: {one.server}, {one.case}: {fault}")
    headline = ", ".join(f"{row[0]} {row[1]} {row[-1]}" for row in rows if "ttft_p99" in row[1])
    commands = {contender.name: contender.command for contender in contenders}
    files.finish({"commands": commands, "passes": [asdict(one) for one in passes]}, headline)
    return int(any(one.fault for one in passes))


def compare(passes: Sequence[Pass], names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Case, measure, the median of each server, and the first one's over the second one's."""
    for case in dict.fromkeys(one.case for one in passes):
        for measure, (unit, is_more_better) in MEASURES.items():
            values = [_median(passes, case, name, measure) for name in names]
            ratio = f"{values[0] / values[1]:.2f} x" if values[1] else "-"
            title = f"{measure} ({unit}, {'more' if is_more_better else 'less'} is better)"
            yield case, title, *(f"{value:,.1f}" for value in values), ratio


def _median(passes: Sequence[Pass], case: str, server: str, measure: str) -> float:
    chosen = [one for one in passes if (one.case, one.server) == (case, server)]
    values: list[float] = [getattr(one, measure) for one in chosen]
    return statistics.median(values)


def cases_of(args: argparse.Namespace) -> list[Case]:
    """The cases of both loops, as the command `http` makes them."""
    common = vars(args) | {"trace": None, "time_unit": "s"}
    open_loop = common | {"requests": None, "concurrency": None}
    cases = plan(argparse.Namespace(**open_loop)) if args.rate else []
    for number in args.concurrency:
        closed = {"rate": None, "requests": args.turnover * number, "concurrency": [number]}
        cases += plan(argparse.Namespace(**(common | closed)))
    return cases


def _contenders(args: argparse.Namespace, scratch: Path) -> list[Contender]:
    limits = ServerLimits(
        model=model_folder(args.model, scratch),
        device=args.device,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_model_len=args.max_model_len,
        gpu_memory_fraction=args.gpu_memory_fraction,
    )
    ours = pagoda(OURS, limits, args.port, scratch)
    if args.peer == VLLM:
        return [ours, vllm(limits, args.port + 1, args.vllm_packages, args.vllm_options)]
    return [ours, pagoda(f"{OURS} again", limits, args.port + 1, scratch)]


@contextmanager
def _started(contender: Contender, log: Path, args: argparse.Namespace) -> Iterator[ServerProcess]:
    print(f"starting {contender.name}", flush=True)
    command, environment = list(contender.command), contender.full_environment()
    server = ServerProcess(command, contender.url, log, environment)
    try:
        seconds = server.seconds_until_healthy(args.start_limit_s)
        print(f"{contender.name} is ready after {seconds:.0f} s", flush=True)
        yield server
    finally:
        server.close()


def _measure(
    args: argparse.Namespace, contender: Contender, server: ServerProcess, case: Case
) -> Pass:
    settings = LoadSettings(
        url=contender.url, vocab_size=args.vocab_size, seed=args.seed, drain_s=args.drain_s
    )
    processes = server.processes()
    cpu_s = _cpu_seconds(processes)
    [result] = asyncio.run(drive(settings, [case]))
    return _pass(contender, case, result.figures, _cpu_seconds(processes) - cpu_s)


def _pass(contender: Contender, case: Case, figures: LoadFigures, cpu_s: float) -> Pass:
    return Pass(
        server=contender.name,
        case=case.label,
        ttft_p50=_ms(figures.ttft_s, "p50"),
        ttft_p99=_ms(figures.ttft_s, "p99"),
        tpot_p50=_ms(figures.tpot_s, "p50"),
        gap_p99=_ms(figures.chunk_gap_s, "p99"),
        tokens_per_s=figures.output_tokens_per_s,
        server_cpu_s=cpu_s,
        num_failed=figures.num_requests - figures.num_finished,
        invalid=figures.invalid,
    )


def _ms(summary: Summary | None, name: str) -> float:
    return 0.0 if summary is None else 1e3 * float(getattr(summary, name))


def _cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    """CPU seconds of processes so far."""
    seconds = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds
