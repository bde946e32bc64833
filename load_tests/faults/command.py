"""Command `faults`: kills and freezes processes of a server, and looks at every answer."""

import argparse
import asyncio
import os
import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from load_tests import report
from load_tests.bench.startup.server_process import ServerProcess, serving
from load_tests.faults.answers import Received
from load_tests.faults.mix import MixedRequest, draw_cases, with_stop
from load_tests.faults.server import serving_options, small_model, vocab_size, write_config
from load_tests.faults.trial import Pace, Trial, answer_undisturbed, run_trial
from load_tests.faults.victims import FAULTS, count_roles
from load_tests.options import at_least, positive, several

EXAMPLE = "python -m load_tests faults --faults worker-killed,scheduler-killed --repeats 3"

_NUM_CASES = 64
_CONCURRENCY = 32
_ROLES = tuple(sorted({fault.role for fault in FAULTS.values()}))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `faults`."""
    server = parser.add_argument_group("server")
    server.add_argument("--config", type=Path, default=Path("serve_config.yaml"), help="to start")
    server.add_argument("--port", type=at_least(1), default=8000, help="where it is to serve")
    server.add_argument(
        "--model",
        type=Path,
        metavar="DIR",
        help="with a tokenizer; without weights they are random (default: two small layers)",
    )
    server.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="to run on")
    server.add_argument("--replicas", type=at_least(1), default=2, help="engine replicas")
    server.add_argument("--start-limit-s", type=positive, default=240.0, help="give up after this")
    faults = parser.add_argument_group("faults")
    faults.add_argument(
        "--faults",
        type=several(_fault_name),
        default=list(FAULTS),
        metavar="NAME,...",
        help=f"of {', '.join(FAULTS)}, or none",
    )
    faults.add_argument("--repeats", type=at_least(1), default=20, help="of each, at random times")
    load = parser.add_argument_group("load")
    load.add_argument("--rate", type=positive, default=20.0, help="mixed requests per second")
    load.add_argument("--duration-s", type=positive, default=6.0, help="of one trial's arrivals")
    load.add_argument("--limit-s", type=positive, default=150.0, help="longest wait for an answer")
    load.add_argument("--output-len", type=at_least(16), default=64, help="tokens of a choice")
    load.add_argument(
        "--deterministic",
        action="store_true",
        help="ask for answers that do not depend on the batch; needed where dtype is not float32",
    )
    load.add_argument("--seed", type=int, default=0, help="of requests and times")
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run every trial, print the table; 1 if an answer was lost, wrong or cut without need."""
    files = report.start(args, "faults")
    url = f"http://127.0.0.1:{args.port}"
    with _started(args, url, files.path(".log")) as (server, model):
        cases = draw_cases(
            _NUM_CASES,
            seed=args.seed,
            vocab_size=vocab_size(model),
            output_len=args.output_len,
            fields={"deterministic": True} if args.deterministic else {},
        )
        trials = asyncio.run(_run_all(args, server, url, cases))
    _show(trials)
    files.finish({"trials": [asdict(trial) for trial in trials]}, _headline(trials))
    return int(not all(map(is_kept, trials)))


def is_kept(trial: Trial) -> bool:
    """Whether each request of a trial was answered as promised.

    Connections may be cut where the process that held them died, and only then.
    """
    may_cut = trial.fault != "none" and FAULTS[trial.fault].cuts_clients
    return not trial.wrong and not trial.errors and (may_cut or not trial.num_cut)


@contextmanager
def _started(args: argparse.Namespace, url: str, log: Path) -> Iterator[tuple[ServerProcess, Path]]:
    with tempfile.TemporaryDirectory() as scratch:
        model = args.model or small_model(Path(scratch) / "model")
        config = Path(scratch) / "serve_config.yaml"
        options = serving_options(model, args.device)
        write_config(args.config, config, port=args.port, replicas=args.replicas, options=options)
        with serving(config, url, log, dict(os.environ)) as server:
            server.seconds_until_healthy(args.start_limit_s)
            yield server, model


async def _run_all(
    args: argparse.Namespace, server: ServerProcess, url: str, cases: list[MixedRequest]
) -> list[Trial]:
    rng = random.Random(args.seed)
    questions = await _expect(url, cases)
    pace = Pace(rate_per_s=args.rate, duration_s=args.duration_s, limit_s=args.limit_s)
    roles = count_roles(server.processes(), _ROLES)
    trials = []
    for name in args.faults:
        for number in range(args.repeats):
            fault = FAULTS.get(name)
            trial = await run_trial(server, fault, questions, pace, rng)
            trials.append(replace(trial, fault=name))
            print(f"{name} {number + 1}/{args.repeats}: {_in_words(trials[-1])}", flush=True)
            await _until_complete(server, roles, args.limit_s)
    return trials


async def _expect(url: str, cases: list[MixedRequest]) -> list[tuple[MixedRequest, Received]]:
    """Ask for all undisturbed answers; those of stop strings first without, to choose one."""
    answers = await answer_undisturbed(url, cases, _CONCURRENCY)
    cases = [
        with_stop(case, answer.choices[0].text) if case.kind == "stop string" else case
        for case, answer in zip(cases, answers, strict=True)
    ]
    expected = await answer_undisturbed(url, cases, _CONCURRENCY)
    return list(zip(cases, expected, strict=True))


async def _until_complete(server: ServerProcess, roles: dict[str, int], limit_s: float) -> None:
    """Wait until as many processes of each role run as before the fault.

    Raises:
        ValueError: if that takes longer than the limit.
    """
    try:
        async with asyncio.timeout(limit_s):
            # a process that Ray starts announces itself to nobody
            while count_roles(server.processes(), _ROLES) != roles:  # noqa: ASYNC110
                await asyncio.sleep(0.5)
    except TimeoutError:
        found = count_roles(server.processes(), _ROLES)
        raise ValueError(f"processes did not come back: {found} of {roles}") from None


def _show(trials: Sequence[Trial]) -> None:
    columns = (
        "fault", "trials", "requests", "open then", "right", "cut", "wrong", "errors",
        "stall s", "next answer s",
    )  # fmt: skip
    names = list(dict.fromkeys(trial.fault for trial in trials))
    rows = [_row(name, [trial for trial in trials if trial.fault == name]) for name in names]
    report.print_table("Faults under load; seconds: median / longest", columns, rows)


def _row(name: str, trials: Sequence[Trial]) -> tuple[str, ...]:
    sums = (
        len(trials),
        sum(trial.num_requests for trial in trials),
        sum(trial.num_open for trial in trials),
        sum(trial.num_right for trial in trials),
        sum(trial.num_cut for trial in trials),
        sum(len(trial.wrong) for trial in trials),
        sum(len(trial.errors) for trial in trials),
    )
    answers = [trial.next_answer_s for trial in trials if trial.next_answer_s is not None]
    return (
        name,
        *map(str, sums),
        _median_and_longest([trial.stall_s for trial in trials]),
        _median_and_longest(answers),
    )


def _median_and_longest(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.1f} / {max(seconds):.1f}" if seconds else "-"


def _in_words(trial: Trial) -> str:
    kinds = f" ({', '.join(sorted(set(trial.wrong)))})" if trial.wrong else ""
    errors = f", errors {', '.join(sorted(set(trial.errors)))}" if trial.errors else ""
    return (
        f"{trial.num_right} of {trial.num_requests} right, {trial.num_open} open then, "
        f"{trial.num_cut} cut, {len(trial.wrong)} wrong{kinds}{errors}, stall {trial.stall_s:.1f} s"
    )


def _headline(trials: Sequence[Trial]) -> str:
    kept = sum(map(is_kept, trials))
    right = sum(trial.num_right for trial in trials)
    sent = sum(trial.num_requests for trial in trials)
    return f"{kept} of {len(trials)} trials kept every promise; {right} of {sent} answers right"


def _fault_name(word: str) -> str:
    if word != "none" and word not in FAULTS:
        raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(FAULTS)}")
    return word
