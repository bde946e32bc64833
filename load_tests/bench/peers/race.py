"""What the commands `offline`, `online` and `beam` share: ours, a peer and ours again, compared."""

import argparse
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean

from matplotlib.figure import Figure

from engine.architectures.registry import ARCHITECTURES
from engine.config import ModelConfig
from engine.model_config import read_model_config
from load_tests import machine, report
from load_tests.bench.peers.launch import MODULES, Turn, find_ceilings, take_turn
from load_tests.bench.peers.measures import Decode, Knobs, Measure
from load_tests.bench.peers.roofline import least_seconds
from load_tests.bench.peers.system import Figures
from load_tests.card import Ceilings
from load_tests.model_folders import SHAPES, dtype_of, model_folder
from load_tests.options import at_least, not_negative

OURS = "pagoda"
# of the card's memory for weights and blocks, and what activations and graphs take of it
_MEMORY_SHARE = 0.9
_RESERVE_BYTES = 4 << 30
# without a card the pool holds this many tokens
_CPU_TOKENS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One figure in the table: its name in the figures and the scale it is shown in."""

    title: str
    key: str
    scale: float = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that the three commands share."""
    parser.add_argument(
        "--model", default="tiny", help=f"model folder or one of {', '.join(SHAPES)}"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of both sides")
    parser.add_argument(
        "--peer", choices=[name for name in MODULES if name != OURS], help="run this one too"
    )
    parser.add_argument(
        "--order", help="sides in the order they run, NAME,... (default: ours, peer, ours)"
    )
    parser.add_argument("--num-blocks", type=int, default=0, help="KV blocks; 0: what fits")
    parser.add_argument("--block-size", type=at_least(1), default=16, help="tokens")
    parser.add_argument("--max-num-seqs", type=at_least(1), default=256, help="in the batch")
    parser.add_argument(
        "--max-num-batched-tokens", type=at_least(1), default=2048, help="token budget of a step"
    )
    parser.add_argument(
        "--inter-token-latency-ms",
        type=not_negative,
        default=0.0,
        help="what a step should take beside prompts; 0: no target (the peers know none)",
    )
    parser.add_argument("--max-model-len", type=at_least(64), default=2048, help="tokens")
    parser.add_argument(
        "--peer-defaults", action="store_true", help="leave the peer its own batch and budget"
    )
    parser.add_argument("--seed", type=int, default=0, help="of lengths and prompts")
    report.add_arguments(parser)


def run(
    args: argparse.Namespace,
    command: str,
    measures: Sequence[Measure],
    columns: Callable[[Measure], Sequence[Column]],
) -> int:
    """Take all measures on all sides, then print, write and draw them."""
    files = report.start(args, command)
    with tempfile.TemporaryDirectory() as name:
        folder = model_folder(args.model, Path(name))
        model = read_model_config(folder)
        knobs = _knobs(args, folder, model)
        limits = {} if args.device == "cpu" else find_ceilings()
        turns = []
        for side in _order(args):
            own = _peers_own(knobs) if args.peer_defaults and side != OURS else knobs
            turns.append(take_turn(side, own, measures))
            print(f"{side}: {turns[-1].facts}", *turns[-1].errors, sep="\n", flush=True)
            files.write(_document(args.model, knobs, measures, turns, limits))
    shares = _Shares(model, knobs, limits)
    for measure in _kinds(measures):
        _show(measure, measures, turns, columns(measure), shares)
    path = files.write(_document(args.model, knobs, measures, turns, limits))
    _plot(measures, turns, columns, files.path(".png"))
    print(f"wrote {path}")
    if args.log:
        files.log(_headline(measures, turns, columns))
    return int(any(turn.errors for turn in turns))


def _order(args: argparse.Namespace) -> list[str]:
    named = args.order.split(",") if args.order else []
    order = named or ([OURS, args.peer, OURS] if args.peer else [OURS])
    for side in order:
        if side not in MODULES:
            raise ValueError(f"--order names {side!r}, not one of {', '.join(MODULES)}")
        if side != OURS and find_spec(side) is None:
            raise ValueError(f"the peer {side} cannot be imported here: install it or leave it out")
    return order


def _knobs(args: argparse.Namespace, folder: Path, model: ModelConfig) -> Knobs:
    return Knobs(
        model=str(folder),
        dtype=dtype_of(folder),
        device=args.device,
        block_size=args.block_size,
        num_blocks=args.num_blocks or _blocks_that_fit(args, model),
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_model_len=args.max_model_len,
        inter_token_latency_s=args.inter_token_latency_ms / 1e3,
    )


def _peers_own(knobs: Knobs) -> Knobs:
    return Knobs(**(asdict(knobs) | {"max_num_seqs": 0, "max_num_batched_tokens": 0}))


def _blocks_that_fit(args: argparse.Namespace, model: ModelConfig) -> int:
    """The same number for all sides, since each would keep another reserve."""
    memory_bytes = machine.card_memory_bytes()
    if args.device == "cpu" or memory_bytes is None:
        return _CPU_TOKENS // int(args.block_size)
    tensors = ARCHITECTURES[model.architecture].tensors(model)
    weights = 2 * sum(math.prod(shape) for shape in tensors.values())
    free_bytes = memory_bytes * _MEMORY_SHARE - weights - _RESERVE_BYTES
    return int(free_bytes // (args.block_size * model.kv_bytes_per_token(2)))


class _Shares:
    """Says what share of the least possible time a figure is."""

    def __init__(self, model: ModelConfig, knobs: Knobs, limits: dict[str, Ceilings]) -> None:
        self._model, self._knobs, self._limits = model, knobs, limits
        self._least: dict[tuple[Measure, str], float | None] = {}

    @property
    def names(self) -> list[str]:
        return list(self._limits)

    def percent(self, measure: Measure, figures: Figures, name: str) -> str:
        if (measure, name) not in self._least:
            limits = self._limits[name]
            self._least[measure, name] = least_seconds(measure, self._model, self._knobs, limits)
        least = self._least[measure, name]
        taken = figures.get("step_s" if isinstance(measure, Decode) else "wall_s")
        return "-" if least is None or not taken else f"{100 * least / taken:.0f} %"


def _kinds(measures: Sequence[Measure]) -> list[Measure]:
    """The first measure of each kind."""
    return list({type(measure): measure for measure in reversed(measures)}.values())[::-1]


def _show(
    kind: Measure,
    measures: Sequence[Measure],
    turns: Sequence[Turn],
    columns: Sequence[Column],
    shares: _Shares,
) -> None:
    rows = []
    for index, measure in enumerate(measures):
        if type(measure) is not type(kind):
            continue
        for turn in turns:
            figures = turn.figures[index]
            cells = [_cell(figures, column) for column in columns]
            percents = [shares.percent(measure, figures, name) for name in shares.names]
            rows.append((label(measure), turn.side, *cells, *percents))
        if len({turn.side for turn in turns}) > 1:
            rows.append(("", "ours / peer", *(_ratio(turns, index, c) for c in columns)))
    titles = ("measure", "side", *(c.title for c in columns), *(f"% of\n{n}" for n in shares.names))
    rows = [(*row, *[""] * (len(titles) - len(row))) for row in rows]
    report.print_table(f"{machine.name()}, {type(kind).__name__.lower()}", titles, rows)


def label(measure: Measure) -> str:
    """Name a measure in a word or two: whatever tells it from others of its kind."""
    fields = asdict(measure)
    told = {"trace": "{}", "rate_per_s": "{:g} req/s", "batch": "batch {}", "width": "width {}",
            "num_prompts": "{} prompts", "input_len": "{} in", "output_len": "{} out"}  # fmt: skip
    return ", ".join(form.format(fields[name]) for name, form in told.items() if name in fields)


def _cell(figures: Figures, column: Column) -> str:
    return f"{figures[column.key] * column.scale:.4g}" if figures else "failed"


def _mean(turns: Sequence[Turn], index: int, column: Column, *, ours: bool) -> float:
    """Mean over the turns of ours, or of the peers; NaN without any."""
    values = [
        turn.figures[index][column.key]
        for turn in turns
        if (turn.side == OURS) == ours and turn.figures[index]
    ]
    return fmean(values) if values else math.nan


def _ratio(turns: Sequence[Turn], index: int, column: Column) -> str:
    theirs = _mean(turns, index, column, ours=False)
    ratio = _mean(turns, index, column, ours=True) / theirs if theirs else math.nan
    return "-" if math.isnan(ratio) else f"{ratio:.2f} x"


def _document(
    model: str,
    knobs: Knobs,
    measures: Sequence[Measure],
    turns: Sequence[Turn],
    limits: dict[str, Ceilings],
) -> dict[str, object]:
    # the folder of a shape is gone when the document is read
    return {
        "knobs": asdict(knobs) | {"model": model},
        "limits": {name: asdict(value) for name, value in limits.items()},
        "measures": [{"kind": type(m).__name__, **asdict(m)} for m in measures],
        "turns": [asdict(turn) for turn in turns],
    }


def _plot(
    measures: Sequence[Measure],
    turns: Sequence[Turn],
    columns: Callable[[Measure], Sequence[Column]],
    path: Path,
) -> None:
    """Bars of the first figure of every measure, one colour for each side."""
    kinds = _kinds(measures)
    figure = Figure(figsize=(4.5 * len(kinds), 3.6), layout="constrained")
    panels = figure.subplots(1, len(kinds), squeeze=False)[0]
    for panel, kind in zip(panels, kinds, strict=True):
        chosen = [i for i, measure in enumerate(measures) if type(measure) is type(kind)]
        column = columns(kind)[0]
        width = 0.8 / len(turns)
        for number, turn in enumerate(turns):
            heights = [turn.figures[i].get(column.key, 0.0) * column.scale for i in chosen]
            places = [place + number * width for place in range(len(chosen))]
            colour = "tab:blue" if turn.side == OURS else "tab:orange"
            panel.bar(places, heights, 0.9 * width, color=colour, label=turn.side)
        panel.set_xticks(range(len(chosen)), [label(measures[i]) for i in chosen], fontsize=7)
        panel.set_ylabel(column.title.replace("\n", " "))
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False)
    figure.savefig(path, dpi=120)


def _headline(
    measures: Sequence[Measure],
    turns: Sequence[Turn],
    columns: Callable[[Measure], Sequence[Column]],
) -> str:
    parts = []
    for index, measure in enumerate(measures):
        column = columns(measure)[0]
        ours = _mean(turns, index, column, ours=True) * column.scale
        title = column.title.replace("\n", " ")
        part = f"{label(measure)}: {ours:.4g} {title}"
        if len({turn.side for turn in turns}) > 1:
            part += f", {_ratio(turns, index, column)} the peer's"
        parts.append(part)
    return "; ".join(parts)
