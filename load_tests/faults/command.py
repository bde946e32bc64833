"""Command `faults`: kills and freezes processes of a server, and looks at every answer."""

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from load_tests import report
from load_tests.bench.startup.server_process import ServerProcess
from load_tests.faults import trials
from load_tests.faults.answers import Received
from load_tests.faults.holdings import Holder
from load_tests.faults.mix import MixedRequest, draw_cases, with_stop
from load_tests.faults.server import serving_options, small_model, vocab_size, write_config
from load_tests.faults.trial import NO_FAULT, Bench, Pace, answer_undisturbed, run_trial
from load_tests.faults.trials import TrialId, Trials
from load_tests.faults.victims import FAULTS
from load_tests.options import add_server, at_least, positive, several

EXAMPLE = "python -m load_tests faults --faults worker-killed,scheduler-killed --repeats 3"

_CONCURRENCY = 32
# whoever comes while the only replica starts again waits, where a server of use would refuse some
_PATIENT = {"deadlines": {"queue_s": 300.0}, "max_waiting_tokens": 1 << 20}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `faults`."""
    server = parser.add_argument_group("server")
    add_server(server)
    server.add_argument("--port", type=at_least(1), default=8000, help="where it is to serve")
    server.add_argument("--replicas", type=at_least(1), default=2, help="engine replicas")
    faults = parser.add_argument_group("faults")
    faults.add_argument(
        "--faults",
        type=several(_fault_name),
        default=list(FAULTS),
        metavar="NAME,...",
        help=f"of {', '.join(FAULTS)}, or {NO_FAULT}",
    )
    faults.add_argument("--repeats", type=at_least(1), default=20, help="of each, at random times")
    faults.add_argument(
        "--trials",
        type=Path,
        metavar="FILE",
        help="append each trial to this file; those that it has already are not run again",
    )
    load = parser.add_argument_group("load")
    load.add_argument("--rate", type=positive, default=20.0, help="mixed requests per second")
    load.add_argument("--duration-s", type=positive, default=4.0, help="of one trial's arrivals")
    load.add_argument("--limit-s", type=positive, default=150.0, help="longest wait for an answer")
    load.add_argument(
        "--cases", type=at_least(8), default=64, help="requests to draw from, of eight kinds"
    )
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
    _end_by_an_exception()
    files = report.start(args, "faults")
    path: Path = args.trials or files.path(".jsonl")
    wanted = [
        TrialId(fault=name, num_replicas=args.replicas, repeat=repeat)
        for repeat in range(args.repeats)
        for name in args.faults
    ]
    num_started = 0
    for has_two_nodes in (False, True):
        mine = [it for it in wanted if _needs_two_nodes(it) == has_two_nodes]
        # a server that did not come back as it was is not used again
        while missing := [it for it in mine if it not in trials.read(path)]:
            num_started += 1
            log = files.path(f"_{num_started}.log")
            with _started(args, log, has_two_nodes=has_two_nodes) as started:
                asyncio.run(_run_until_spoilt(args, *started, missing, path))
    done = trials.read(path)
    trials.show(done)
    files.finish({"trials": _as_json(done)}, trials.headline(done))
    return int(not all(map(trials.is_kept, done.values())))


def _end_by_an_exception() -> None:
    """Have whoever ends a run of an hour, perhaps in the background, leave no server behind."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


def _needs_two_nodes(trial_id: TrialId) -> bool:
    return trial_id.fault != NO_FAULT and FAULTS[trial_id.fault].needs_two_nodes


@contextmanager
def _started(
    args: argparse.Namespace, log: Path, *, has_two_nodes: bool
) -> Iterator[tuple[ServerProcess, Path, Path]]:
    """Serve until the end of the context; gives the server, its log and its model."""
    url = f"http://127.0.0.1:{args.port}"
    # all lines, also those that many processes write
    env = os.environ | {"RAY_DEDUP_LOGS": "0"}
    with tempfile.TemporaryDirectory() as scratch:
        model = args.model or small_model(Path(scratch) / "model")
        config = Path(scratch) / "serve_config.yaml"
        write_config(
            args.config,
            config,
            port=args.port,
            replicas=args.replicas,
            options=serving_options(model, args.device) | _PATIENT,
            has_two_nodes=has_two_nodes,
        )
        module = "load_tests.faults.two_nodes"
        two_nodes = [sys.executable, "-m", module, str(config)]
        # what `pagoda serve` starts
        one_node = [sys.executable, "-m", "app.serve.run", "--own-ray", str(config)]
        command = two_nodes if has_two_nodes else one_node
        server = ServerProcess(command, url, log, env)
        try:
            server.seconds_until_healthy(args.start_limit_s)
            yield server, log, model
        finally:
            server.close()


async def _run_until_spoilt(
    args: argparse.Namespace,
    server: ServerProcess,
    log: Path,
    model: Path,
    missing: Sequence[TrialId],
    path: Path,
) -> None:
    """Run trials and append them, up to the first after which something is left."""
    questions = await _expect(f"http://127.0.0.1:{args.port}", _draw(args, model))
    pace = Pace(rate_per_s=args.rate, duration_s=args.duration_s, limit_s=args.limit_s)
    holder = Holder(server)
    # Ray has put a handler of its own in the place of ours
    _end_by_an_exception()
    try:
        before = await holder.settled(args.limit_s, args.replicas)
        bench = Bench(
            server=server, log=log, pace=pace, questions=questions, holder=holder, before=before
        )
        for trial_id in missing:
            name, repeat = trial_id.fault, trial_id.repeat
            rng = random.Random(f"{args.seed} {name} {args.replicas} {repeat}")
            trial = await run_trial(bench, FAULTS.get(name), rng)
            trial = replace(trial, fault=name)
            trials.append(path, trial_id, trial)
            print(f"{name} {repeat + 1}/{args.repeats}: {trials.in_words(trial)}", flush=True)
            if trial.left:
                return
        after = await holder.settled(args.limit_s, args.replicas)
        print(f"held before any fault: {before}; and now: {after}", flush=True)
    finally:
        holder.close()


def _draw(args: argparse.Namespace, model: Path) -> list[MixedRequest]:
    return draw_cases(
        args.cases,
        seed=args.seed,
        vocab_size=vocab_size(model),
        output_len=args.output_len,
        fields={"deterministic": True} if args.deterministic else {},
    )


async def _expect(url: str, cases: list[MixedRequest]) -> list[tuple[MixedRequest, Received]]:
    """Ask for all undisturbed answers; those of stop strings first without, to choose one."""
    unstopped = [case for case in cases if case.kind == "stop string"]
    answers = await answer_undisturbed(url, unstopped, _CONCURRENCY)
    stopped = iter(
        with_stop(case, answer.choices[0].text)
        for case, answer in zip(unstopped, answers, strict=True)
    )
    cases = [next(stopped) if case.kind == "stop string" else case for case in cases]
    expected = await answer_undisturbed(url, cases, _CONCURRENCY)
    return list(zip(cases, expected, strict=True))


def _as_json(done: Trials) -> list[dict[str, object]]:
    return [asdict(it) | asdict(trial) for it, trial in done.items()]


def _fault_name(word: str) -> str:
    if word != NO_FAULT and word not in FAULTS:
        raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(FAULTS)}")
    return word
