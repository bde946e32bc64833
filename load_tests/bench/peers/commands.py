"""Commands `offline`, `online`, `beam`, `peers`: what is measured, which figures are shown."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from load_tests.bench.peers import race
from load_tests.bench.peers.measures import Beam, Decode, Measure, Offline, Online
from load_tests.bench.peers.race import Column
from load_tests.bench.peers.system import is_modern, modern_requests
from load_tests.options import at_least, positive, several
from load_tests.traffic.lognormal import TRACES
from load_tests.traffic.sources import MAX_TOTAL_LEN, SOURCES

_OUTPUT = Column(title="output\ntok/s", key="output_tokens_per_s")
_REQUESTS = Column(title="req/s", key="requests_per_s")
_SECONDS = Column(title="seconds", key="wall_s")
COLUMNS: Mapping[type[Measure], Sequence[Column]] = {
    Offline: (
        _OUTPUT,
        Column(title="total\ntok/s", key="total_tokens_per_s"),
        _REQUESTS,
        _SECONDS,
    ),
    Decode: (
        Column(title="ms per\nstep", key="step_s", scale=1e3),
        Column(title="prefill\ntok/s", key="prefill_tokens_per_s"),
    ),
    Beam: (_OUTPUT, _REQUESTS, _SECONDS),
    Online: (
        Column(title="ITL p99\nms", key="itl_p99_s", scale=1e3),
        Column(title="ITL p50\nms", key="itl_p50_s", scale=1e3),
        Column(title="ITL p99.9\nms", key="itl_p999_s", scale=1e3),
        Column(title="TTFT p50\nms", key="ttft_p50_s", scale=1e3),
        Column(title="TTFT p99\nms", key="ttft_p99_s", scale=1e3),
        Column(title="norm. latency\nms/token", key="normalized_latency_s", scale=1e3),
        _OUTPUT,
    ),
}
_CACHED = Column(title="% of prompts\ncached", key="cached_share", scale=100.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of measures: its options, and what they ask for."""

    add_options: Callable[[argparse.ArgumentParser], None]
    measures: Callable[[argparse.Namespace], list[Measure]]


@dataclass(frozen=True, slots=True)
class PeerCommand:
    """A command that takes measures of one kind, or of all with the option `--only`.

    Attributes:
        EXAMPLE: see `CommandModule`.
    """

    name: str
    EXAMPLE: str

    @property
    def _kinds(self) -> Mapping[str, Kind]:
        return {self.name: KINDS[self.name]} if self.name in KINDS else KINDS

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options."""
        for kind in self._kinds.values():
            kind.add_options(parser)
        if len(self._kinds) > 1:
            parser.add_argument(
                "--only", type=several(str), default=list(KINDS), help="measures to take, NAME,..."
            )
        race.add_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Measure all systems."""
        only = getattr(args, "only", [self.name])
        if unknown := set(only) - self._kinds.keys():
            raise ValueError(f"--only names {unknown}, not among {', '.join(KINDS)}")
        chosen = [kind for name, kind in self._kinds.items() if name in only]
        measures = [measure for kind in chosen for measure in kind.measures(args)]
        return race.run(args, self.name, measures, columns)


def columns(measure: Measure) -> Sequence[Column]:
    """Figures to show of a measure."""
    return (*COLUMNS[type(measure)], *([_CACHED] if is_modern(measure) else []))


def _add_offline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--traces", type=several(str), default=[*TRACES], help="that lengths are like, NAME,..."
    )
    parser.add_argument("--requests", type=at_least(1), default=1000, help="of each trace")
    parser.add_argument(
        "--decode", type=several(at_least(1)), default=[], metavar="N,...", help="batches to time"
    )
    parser.add_argument(
        "--decode-schemas",
        type=at_least(0),
        default=0,
        metavar="N",
        help="time them again with every row bound by one of so many JSON schemas",
    )
    parser.add_argument("--decode-input", type=at_least(1), default=512, help="tokens of a prompt")
    parser.add_argument(
        "--decode-output",
        type=at_least(1),
        default=128,
        help="steps to average, of answers twice as long",
    )
    parser.add_argument(
        "--prompts",
        type=several(at_least(1)),
        default=[],
        metavar="N,...",
        help="tokens of a prompt that is prefilled by itself and then generates as --decode does",
    )


def _offline(args: argparse.Namespace) -> list[Measure]:
    lengths = {"output_len": args.decode_output, "seed": args.seed}
    sizes = {"input_len": args.decode_input, **lengths}
    return [
        *(Offline(trace=name, num_requests=args.requests, seed=args.seed) for name in args.traces),
        *(Decode(batch=batch, **sizes) for batch in args.decode),
        *(
            Decode(batch=batch, num_schemas=args.decode_schemas, **sizes)
            for batch in args.decode
            if args.decode_schemas
        ),
        *(Decode(batch=1, input_len=input_len, **lengths) for input_len in args.prompts),
    ]


def _add_beam(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--widths", type=several(at_least(2)), default=[4, 8], help="beams of a search, N,..."
    )
    parser.add_argument("--beams", type=at_least(2), default=256, help="of all searches together")
    parser.add_argument("--input-len", type=at_least(1), default=161, help="tokens of a prompt")
    parser.add_argument("--output-len", type=at_least(1), default=64, help="tokens of an answer")


def _beam(args: argparse.Namespace) -> list[Measure]:
    return [
        Beam(
            width=width,
            num_prompts=max(1, args.beams // width),
            input_len=args.input_len,
            output_len=args.output_len,
            seed=args.seed,
        )
        for width in args.widths
    ]


def _add_online(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rates", type=several(positive), default=[15.0, 30.0], help="req/s, N,..."
    )
    parser.add_argument("--duration", type=positive, default=60.0, help="seconds of arrivals")
    parser.add_argument(
        "--trace",
        choices=(*TRACES, *SOURCES),
        default="sharegpt",
        help=f"that lengths are like; {', '.join(SOURCES)} with the prefix cache",
    )


def _online(args: argparse.Namespace) -> list[Measure]:
    measures = [
        Online(trace=args.trace, rate_per_s=rate, duration_s=args.duration, seed=args.seed)
        for rate in args.rates
    ]
    if args.trace in SOURCES:
        requests = [request for measure in measures for request in modern_requests(measure)]
        longest = max(request.input_len + request.output_len for request in requests)
        if longest > args.max_model_len:
            raise ValueError(
                f"--trace {args.trace} has a request of {longest} tokens, more than "
                f"--max-model-len {args.max_model_len}: raise it, up to {MAX_TOTAL_LEN}"
            )
    return [*measures]


# batches first: a peer may need another process for arrivals
KINDS = {
    "offline": Kind(add_options=_add_offline, measures=_offline),
    "beam": Kind(add_options=_add_beam, measures=_beam),
    "online": Kind(add_options=_add_online, measures=_online),
}
_BESIDE_VLLM = "--model llama3-8b --device cuda --peer vllm"
OFFLINE = PeerCommand("offline", f"python -m load_tests offline {_BESIDE_VLLM} --decode 1,8,64,256")
ONLINE = PeerCommand("online", f"python -m load_tests online {_BESIDE_VLLM} --rates 15,30")
BEAM = PeerCommand("beam", f"python -m load_tests beam {_BESIDE_VLLM} --widths 4,8")
PEERS = PeerCommand("peers", f"python -m load_tests peers {_BESIDE_VLLM}")
