"""Command `deterministic`: the same bits in every arrangement, and what the mode costs."""

import argparse
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.integers import div_ceil
from engine.model_config import read_model_config
from engine.types import Request, SamplingParams, int32
from load_tests import machine, report
from load_tests.bench.in_process.arrangements import Answers, Arrangement, Stage
from load_tests.bench.peers.system import prompt_ids
from load_tests.local_engine import local_config
from load_tests.model_folders import model_folder
from load_tests.options import add_model, at_least
from load_tests.traffic.lognormal import TRACES, draw_pairs

EXAMPLE = "python -m load_tests deterministic --model llama3-8b --device cuda --requests 200"

ONE_BY_ONE = "one by one"
_BLOCK_SIZE = 16
# tokens of prompts beside a full batch of decodes, where prompts are cut
_CHUNK_TOKENS = 32
# requests that also run one by one without the mode
_NUM_PLAIN = 16
# what requests of a mix ask for in turn
_KINDS: dict[str, dict[str, Any]] = {
    "draws": {},
    "greedy": {"temperature": 0.0},
    "filters": {"top_p": 0.9, "top_k": 50},
    "samples": {"n": 3},
    "beams": {"n": 4, "beam_width": 4},
    "alternatives": {"num_logprobs": 3},
    "penalties": {"temperature": 0.7, "frequency_penalty": 1.0, "min_tokens": 8},
    "scored prompt": {"prompt_logprobs": 2},
    "ruled beams": {"n": 2, "beam_width": 2, "repetition_penalty": 1.1},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `deterministic`."""
    add_model(parser)
    parser.add_argument("--requests", type=at_least(2), default=200, help="in each arrangement")
    parser.add_argument("--batch", type=at_least(2), default=64, help="requests at once")
    parser.add_argument("--trace", choices=TRACES, default="sharegpt", help="lengths of prompts")
    parser.add_argument("--longest-input", type=at_least(8), default=512, help="tokens")
    parser.add_argument("--output-len", type=at_least(1), default=32, help="tokens of an answer")
    parser.add_argument(
        "--mixed", action="store_true", help=f"in turn {', '.join(_KINDS)}; all draw otherwise"
    )
    parser.add_argument("--seed", type=int, default=0, help="of lengths, prompts and draws")
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run all arrangements on one worker, compare them with the first, and time the mode."""
    files = report.start(args, "deterministic")
    requests = _requests(args)
    arrangements = _arrangements(args, requests)
    with tempfile.TemporaryDirectory() as name:
        config = _config(args, model_folder(args.model, Path(name)), arrangements)
        stage = Stage(config)
        try:
            runs = {a.name: stage.run(a, requests) for a in arrangements}
            timed = _timed(stage, arrangements, requests)
        finally:
            stage.close()
    faults, prices = _faults(runs, _kinds(args)), _prices(timed)
    _show(runs, timed)
    costs = (
        f"the mode costs {prices['batch']:.1%} of the throughput in a batch, "
        f"{prices[ONE_BY_ONE]:.1%} one by one"
    )
    print(costs, *faults, sep="\n")
    bits = "; ".join(faults) or (
        f"{args.requests} requests with the same bits one by one, in a batch of {args.batch}, "
        "with chunked prefill, swapped and recomputed"
    )
    files.finish(
        {
            "model": {"num_layers": config.model.num_layers, "dtype": config.dtype},
            **_document(runs, timed),
            "price": prices,
            "faults": faults,
        },
        f"{bits}; {costs}",
    )
    return int(bool(faults))


def _kinds(args: argparse.Namespace) -> list[str]:
    """What each request asks for."""
    kinds = list(_KINDS) if args.mixed else ["draws"]
    return [kinds[index % len(kinds)] for index in range(args.requests)]


def _requests(args: argparse.Namespace) -> list[Request]:
    pairs = draw_pairs(args.trace, args.requests, args.seed)
    base = SamplingParams(
        max_tokens=args.output_len, num_logprobs=0, ignore_eos=True, deterministic=True
    )
    return [
        Request(
            request_id=index,
            prompt=int32(prompt_ids(args.seed, index, min(input_len, args.longest_input))),
            sampling=replace(base, seed=args.seed + index, **_KINDS[kind]),
        )
        for index, ((input_len, _), kind) in enumerate(zip(pairs, _kinds(args), strict=True))
    ]


def _num_blocks(request: Request) -> int:
    """The most that a request has at once."""
    sampling = request.sampling
    num_tokens = len(request.prompt) + sampling.max_tokens
    num_own = div_ceil(sampling.max_tokens, _BLOCK_SIZE) + 1
    return div_ceil(num_tokens, _BLOCK_SIZE) + (_num_rows(request) - 1) * num_own


def _num_rows(request: Request) -> int:
    return max(request.sampling.n, request.sampling.beam_width)


def _arrangements(args: argparse.Namespace, requests: Sequence[Request]) -> list[Arrangement]:
    """The first is the one that the others are compared with."""
    sizes = [_num_blocks(request) for request in requests]
    largest = sorted(sizes)[-args.batch :]
    # the largest request fits, and of a batch of average ones no more than half
    num_rows = sum(map(_num_rows, requests))
    scarce = max(largest[-1] + 2, sum(sizes) * min(args.batch, num_rows) // num_rows // 2)
    batch = Arrangement(
        name=f"batch of {args.batch}",
        num_rows=args.batch,
        max_num_batched_tokens=2048,
        num_blocks=sum(largest),
    )
    return [
        replace(
            batch,
            name=ONE_BY_ONE,
            num_rows=max(map(_num_rows, requests)),
            is_one_by_one=True,
        ),
        batch,
        replace(batch, name="chunked prefill", max_num_batched_tokens=args.batch + _CHUNK_TOKENS),
        replace(batch, name="swapped", num_blocks=scarce),
        replace(batch, name="recomputed", num_blocks=scarce, preemption="recompute"),
    ]


def _config(
    args: argparse.Namespace, folder: Path, arrangements: Sequence[Arrangement]
) -> EngineConfig:
    scarce = min(a.num_blocks for a in arrangements)
    return local_config(
        folder,
        args.device,
        block_size=_BLOCK_SIZE,
        num_blocks=max(a.num_blocks for a in arrangements),
        # four bytes hold a value of every type
        swap_bytes=scarce * _BLOCK_SIZE * read_model_config(folder).kv_bytes_per_token(4),
        max_num_seqs=args.batch,
        max_num_batched_tokens=max(a.max_num_batched_tokens for a in arrangements),
        max_model_len=args.longest_input + args.output_len,
    )


def _timed(
    stage: Stage, arrangements: Sequence[Arrangement], requests: Sequence[Request]
) -> dict[str, Answers]:
    """With the mode and without it; each batch runs twice, so that nothing is timed cold."""
    one_by_one, batch = arrangements[:2]
    plain = [replace(r, sampling=replace(r.sampling, deterministic=False)) for r in requests]
    stage.run(batch, plain)
    timed = {
        "batch, default": stage.run(batch, plain),
        "batch, deterministic": stage.run(batch, requests),
        "batch, default again": stage.run(batch, plain),
    }
    for name, works in (("default", plain), ("deterministic", requests)):
        timed[f"{ONE_BY_ONE}, {name}"] = stage.run(one_by_one, works[:_NUM_PLAIN])
    return timed


def _faults(runs: dict[str, Answers], kinds: Sequence[str]) -> list[str]:
    """What must not be: other bits, or an arrangement without what it is for."""
    faults = []
    for name, one in runs.items():
        counts = Counter(kinds[index] for index in runs[ONE_BY_ONE].differing(one))
        if counts:
            of_kinds = ", ".join(f"{count} of {kind}" for kind, count in counts.items())
            faults.append(f"{name}: other bits than one by one in requests: {of_kinds}")
    preempted = {
        "swapped": runs["swapped"].num_swapped,
        "recomputed": runs["recomputed"].num_recomputed,
    }
    missing = [name for name, count in preempted.items() if not count]
    return faults + [f"{name}: nothing was; raise --output-len or --batch" for name in missing]


def _prices(timed: dict[str, Answers]) -> dict[str, float]:
    """Share of the throughput that the mode costs."""
    speeds = {name: one.tokens_per_s for name, one in timed.items()}
    default = (speeds["batch, default"] + speeds["batch, default again"]) / 2
    return {
        "batch": 1 - speeds["batch, deterministic"] / default,
        ONE_BY_ONE: 1 - speeds[f"{ONE_BY_ONE}, deterministic"] / speeds[f"{ONE_BY_ONE}, default"],
    }


def _show(runs: dict[str, Answers], timed: dict[str, Answers]) -> None:
    rows = [
        (
            name,
            str(len(one.answers)),
            str(len(runs[ONE_BY_ONE].differing(one))),
            str(one.num_swapped),
            str(one.num_recomputed),
            f"{one.tokens_per_s:.0f}",
        )
        for name, one in runs.items()
    ]
    bits = f"other bits\nthan {ONE_BY_ONE}"
    columns = ("arrangement", "requests", bits, "swapped", "recomputed", "tok/s")
    report.print_table(f"{machine.name()}, deterministic", columns, rows)
    plain = timed[f"{ONE_BY_ONE}, default"]
    prices = [
        (name, f"{one.tokens_per_s:.0f}", _without_mode(name, one, plain))
        for name, one in timed.items()
    ]
    report.print_table("the price, in one run", ("arrangement", "tok/s", bits), prices)


def _without_mode(name: str, one: Answers, plain: Answers) -> str:
    """Requests with other bits without the mode, of those that ran one by one without it, too."""
    if "deterministic" in name or one is plain:
        return ""
    return f"{len(plain.differing(one))} of {len(plain.answers)}"


def _document(runs: dict[str, Answers], timed: dict[str, Answers]) -> dict[str, object]:
    speeds = {
        name: {"output_tokens_per_s": one.tokens_per_s, "wall_s": one.wall_s}
        for name, one in (runs | timed).items()
    }
    return {
        "arrangements": {
            name: {
                "requests": len(one.answers),
                "differing": runs[ONE_BY_ONE].differing(one),
                "swapped": one.num_swapped,
                "recomputed": one.num_recomputed,
                **speeds[name],
            }
            for name, one in runs.items()
        },
        "timed": {name: speeds[name] for name in timed},
    }
