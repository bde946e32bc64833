"""Command `deterministic`: the same bits in every arrangement, and what the mode costs."""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from engine.config import EngineConfig
from engine.model_config import read_model_config
from engine.types import IntColumn, Request, SamplingParams, int32
from engine.worker.worker import load_worker
from load_tests import machine, report
from load_tests.bench.in_process.arrangements import Arrangement, Outcome, Stage
from load_tests.bench.peers.system import FIRST_ID, VOCAB_SIZE
from load_tests.model_folders import SHAPES, dtype_of, embedded_model, load_format_of, model_folder
from load_tests.options import at_least
from load_tests.traffic.lognormal import TRACES, draw_pairs
from load_tests.traffic.schedule import prompt

EXAMPLE = "python -m load_tests deterministic --model llama3-8b --device cuda --requests 200"

EMBEDDED = "embedded"
_BLOCK_SIZE = 16
# tokens of prompts beside a full batch of decodes, where prompts are cut
_CHUNK_TOKENS = 32
# requests that also run alone without the mode
_NUM_PLAIN = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `deterministic`."""
    parser.add_argument(
        "--model",
        default="tiny",
        help=f"model folder, {EMBEDDED}, or one of {', '.join(SHAPES)} with random weights",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="to run on")
    parser.add_argument("--requests", type=at_least(2), default=200, help="in each arrangement")
    parser.add_argument("--batch", type=at_least(2), default=64, help="requests at once")
    parser.add_argument("--trace", choices=TRACES, default="sharegpt", help="lengths of prompts")
    parser.add_argument("--longest-input", type=at_least(8), default=512, help="tokens")
    parser.add_argument("--output-len", type=at_least(1), default=32, help="tokens of an answer")
    parser.add_argument("--seed", type=int, default=0, help="of lengths, prompts and draws")
    report.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run all arrangements on one worker, compare them with the run alone, and time the mode."""
    files = report.start(args, "deterministic")
    requests = _requests(args)
    arrangements = _arrangements(args, requests)
    with tempfile.TemporaryDirectory() as name:
        config = _config(args, _folder(args.model, Path(name)), arrangements)
        stage = Stage(load_worker(config), config)
        try:
            outcomes = {a.name: stage.run(a, requests) for a in arrangements}
            plain = _without_the_mode(stage, arrangements, requests)
        finally:
            stage.close()
    faults = _faults(outcomes)
    prices = _prices(outcomes, plain)
    _show(outcomes, plain, prices)
    path = files.write(_document(config, outcomes, plain, prices, faults))
    print(*faults, f"wrote {path}", sep="\n")
    if args.log:
        files.log(_headline(args, faults, prices))
    return int(bool(faults))


def _requests(args: argparse.Namespace) -> list[Request]:
    pairs = draw_pairs(args.trace, args.requests, args.seed)
    return [
        Request(
            request_id=index,
            prompt=_prompt(args.seed, index, min(input_len, args.longest_input)),
            sampling=SamplingParams(
                max_tokens=args.output_len,
                seed=args.seed + index,
                num_logprobs=0,
                ignore_eos=True,
                deterministic=True,
            ),
        )
        for index, (input_len, _) in enumerate(pairs)
    ]


def _prompt(seed: int, index: int, length: int) -> IntColumn:
    return int32([FIRST_ID + token for token in prompt(seed, index, length, VOCAB_SIZE - FIRST_ID)])


def _arrangements(args: argparse.Namespace, requests: Sequence[Request]) -> list[Arrangement]:
    """Alone comes first; others are compared with it."""
    sizes = [-(-(len(r.prompt) + args.output_len) // _BLOCK_SIZE) for r in requests]
    largest = sorted(sizes)[-args.batch :]
    # the largest request fits, and of a batch of average ones no more than half
    scarce = max(largest[-1] + 2, sum(sizes) * min(args.batch, len(sizes)) // len(sizes) // 2)
    batch = Arrangement(
        name=f"batch of {args.batch}",
        num_rows=args.batch,
        max_num_batched_tokens=2048,
        num_blocks=sum(largest),
    )
    return [
        replace(batch, name="alone", num_rows=1),
        batch,
        replace(batch, name="chunked prefill", max_num_batched_tokens=args.batch + _CHUNK_TOKENS),
        replace(batch, name="swapped", num_blocks=scarce),
        replace(batch, name="recomputed", num_blocks=scarce, preemption="recompute"),
    ]


def _folder(model: str, scratch: Path) -> Path:
    return embedded_model() if model == EMBEDDED else model_folder(model, scratch)


def _config(
    args: argparse.Namespace, folder: Path, arrangements: Sequence[Arrangement]
) -> EngineConfig:
    model = read_model_config(folder)
    scarce = min(a.num_blocks for a in arrangements)
    return EngineConfig(
        model_path=str(folder),
        model=model,
        dtype=dtype_of(folder),
        device=args.device,
        load_format=load_format_of(folder),
        block_size=_BLOCK_SIZE,
        num_blocks=max(a.num_blocks for a in arrangements),
        # four bytes hold a value of every type
        swap_bytes=scarce * _BLOCK_SIZE * model.kv_bytes_per_token(4),
        max_num_seqs=args.batch,
        max_num_batched_tokens=max(a.max_num_batched_tokens for a in arrangements),
        max_model_len=args.longest_input + args.output_len,
        prefix_cache=False,
    )


def _without_the_mode(
    stage: Stage, arrangements: Sequence[Arrangement], requests: Sequence[Request]
) -> dict[str, Outcome]:
    """The same requests without it; each batch runs twice, so that nothing is timed cold."""
    alone, batch = arrangements[:2]
    plain = [replace(r, sampling=replace(r.sampling, deterministic=False)) for r in requests]
    stage.run(batch, plain)
    timed = {
        "batch, default": stage.run(batch, plain),
        "batch, deterministic": stage.run(batch, requests),
        "batch, default again": stage.run(batch, plain),
    }
    for name, works in (("default", plain), ("deterministic", requests)):
        timed[f"alone, {name}"] = stage.run(alone, works[:_NUM_PLAIN])
    return timed


def _faults(outcomes: dict[str, Outcome]) -> list[str]:
    """What must not be: other bits, or an arrangement that was none."""
    alone, *_ = outcomes.values()
    faults = []
    for name, outcome in outcomes.items():
        differing = alone.differing(outcome)
        if differing:
            faults.append(f"{name}: other bits than alone in requests {differing}")
    if not outcomes["swapped"].num_swapped:
        faults.append("swapped: nothing was; raise --output-len or --batch")
    if not outcomes["recomputed"].num_recomputed:
        faults.append("recomputed: nothing was; raise --output-len or --batch")
    return faults


def _prices(outcomes: dict[str, Outcome], plain: dict[str, Outcome]) -> dict[str, float]:
    """Share of the throughput that the mode costs."""
    defaults = plain["batch, default"].tokens_per_s, plain["batch, default again"].tokens_per_s
    default = sum(defaults) / 2
    alone = plain["alone, deterministic"].tokens_per_s / plain["alone, default"].tokens_per_s
    return {
        "batch": 1 - plain["batch, deterministic"].tokens_per_s / default,
        "alone": 1 - alone,
    }


def _show(
    outcomes: dict[str, Outcome], plain: dict[str, Outcome], prices: dict[str, float]
) -> None:
    alone, *_ = outcomes.values()
    rows = [_row(name, outcome, alone) for name, outcome in outcomes.items()]
    columns = (
        "arrangement",
        "requests",
        "other bits\nthan alone",
        "swapped",
        "recomputed",
        "tok/s",
    )
    report.print_table(f"{machine.name()}, deterministic", columns, rows)
    plain_alone = plain["alone, default"]
    timed = [
        (name, f"{outcome.tokens_per_s:.0f}", _without(name, outcome, plain_alone))
        for name, outcome in plain.items()
    ]
    titles = ("arrangement", "tok/s", "other bits\nthan alone")
    report.print_table("the price, in one run", titles, timed)
    print(f"price of the mode: {prices['batch']:.1%} of the throughput in a batch, "
          f"{prices['alone']:.1%} alone")  # fmt: skip


def _row(name: str, outcome: Outcome, alone: Outcome) -> tuple[str, ...]:
    return (
        name,
        str(len(outcome.told)),
        str(len(alone.differing(outcome))),
        str(outcome.num_swapped),
        str(outcome.num_recomputed),
        f"{outcome.tokens_per_s:.0f}",
    )


def _without(name: str, outcome: Outcome, alone: Outcome) -> str:
    """How many requests have other bits without the mode, of those that ran alone so, too."""
    if "deterministic" in name or outcome is alone:
        return ""
    return f"{len(alone.differing(outcome))} of {len(alone.told)}"


def _document(
    config: EngineConfig,
    outcomes: dict[str, Outcome],
    plain: dict[str, Outcome],
    prices: dict[str, float],
    faults: Sequence[str],
) -> dict[str, object]:
    alone, *_ = outcomes.values()
    return {
        "model": {"num_layers": config.model.num_layers, "dtype": config.dtype},
        "arrangements": {
            name: {
                "requests": len(outcome.told),
                "differing": alone.differing(outcome),
                "swapped": outcome.num_swapped,
                "recomputed": outcome.num_recomputed,
                "output_tokens_per_s": outcome.tokens_per_s,
                "wall_s": outcome.wall_s,
            }
            for name, outcome in outcomes.items()
        },
        "timed": {
            name: {"output_tokens_per_s": outcome.tokens_per_s, "wall_s": outcome.wall_s}
            for name, outcome in plain.items()
        },
        "price": prices,
        "faults": list(faults),
    }


def _headline(args: argparse.Namespace, faults: Sequence[str], prices: dict[str, float]) -> str:
    bits = "; ".join(faults) or (
        f"{args.requests} requests with the same bits alone, in a batch of {args.batch}, with "
        "chunked prefill, swapped and recomputed"
    )
    return (
        f"{bits}; the mode costs {prices['batch']:.1%} of the throughput in a batch, "
        f"{prices['alone']:.1%} alone"
    )
