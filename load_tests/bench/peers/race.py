"""The engine, a peer and the engine again take the same measures; what comes out is compared."""

import argparse
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from statistics import fmean

from engine.architectures.registry import ARCHITECTURES
from engine.config import ModelConfig
from engine.model_config import read_model_config
from load_tests import machine, report
from load_tests.bench.in_process.row_kinds import write_tokenizer
from load_tests.bench.peers.launch import MODULES, SystemTurn, take_turn
from load_tests.bench.peers.measures import Decode, Knobs, Measure
from load_tests.bench.peers.roofline import least_seconds
from load_tests.bench.peers.system import MeasuredFigures
from load_tests.card import Ceilings, find_ceilings
from load_tests.model_folders import dtype_of, model_folder
from load_tests.options import add_model, add_ranks, add_sizes, at_least, not_negative
from load_tests.plots import panels, save

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """Everything that was measured.

    Attributes:
        limits: by their source; what each system's times are shares of.
        columns: figures to show of a measure; the first is drawn and logged.
    """

    args: argparse.Namespace
    model: ModelConfig
    knobs: Knobs
    measures: Sequence[Measure]
    turns: Sequence[SystemTurn]
    limits: dict[str, Ceilings]
    columns: Callable[[Measure], Sequence[Column]]

    @property
    def has_peer(self) -> bool:
        """Whether there is anything to compare."""
        return len({turn.system for turn in self.turns}) > 1

    def kinds(self) -> list[list[int]]:
        """Places of the measures of each kind, in their order."""
        places = range(len(self.measures))
        groups = groupby(places, key=lambda place: type(self.measures[place]).__name__)
        return [list(group) for _, group in groups]

    def mean(self, place: int, column: Column, *, ours: bool) -> float:
        """Mean over the turns of ours, or of the peers; NaN without any."""
        values = [
            turn.figures[place][column.key]
            for turn in self.turns
            if (turn.system == OURS) == ours and turn.figures[place]
        ]
        return fmean(values) if values else math.nan

    def ratio(self, place: int, column: Column) -> str:
        """Ours over the peers'."""
        theirs = self.mean(place, column, ours=False)
        ratio = self.mean(place, column, ours=True) / theirs if theirs else math.nan
        return "-" if math.isnan(ratio) else f"{ratio:.2f} x"

    def document(self) -> dict[str, object]:
        """Everything as JSON values."""
        # the folder of a shape is gone when the document is read
        return {
            "knobs": asdict(self.knobs) | {"model": self.args.model},
            "limits": {name: asdict(value) for name, value in self.limits.items()},
            "measures": [{"kind": type(m).__name__, **asdict(m)} for m in self.measures],
            "turns": [
                {"side": t.system, "facts": t.facts, "figures": t.figures, "errors": t.errors}
                for t in self.turns
            ],
        }

    def headline(self) -> str:
        """The first figure of every measure, for the log."""
        parts = []
        for place, measure in enumerate(self.measures):
            column = self.columns(measure)[0]
            ours = self.mean(place, column, ours=True) * column.scale
            part = f"{label(measure)}: {ours:.4g} {column.title.replace(chr(10), ' ')}"
            if self.has_peer:
                part += f", {self.ratio(place, column)} the peer's"
            parts.append(part)
        return "; ".join(parts)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that the commands share."""
    add_model(parser)
    peers = [name for name in MODULES if name != OURS]
    parser.add_argument("--peer", choices=peers, help="run this one too")
    parser.add_argument(
        "--order", help="systems in the order they run, NAME,... (default: ours, peer, ours)"
    )
    add_sizes(parser)
    add_ranks(parser)
    parser.add_argument("--block-size", type=at_least(1), default=16, help="tokens")
    parser.add_argument("--max-num-seqs", type=at_least(1), default=256, help="in the batch")
    parser.add_argument(
        "--inter-token-latency-ms",
        type=not_negative,
        default=0.0,
        help="what a step should take beside prompts; 0: no target (the peers know none)",
    )
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
    """Take all measures on all systems, then print, write and draw them."""
    files = report.start(args, command)
    with tempfile.TemporaryDirectory() as name:
        folder = model_folder(args.model, Path(name))
        model = read_model_config(folder)
        has_schemas = any(isinstance(m, Decode) and m.num_schemas for m in measures)
        if has_schemas and not (folder / "tokenizer.json").exists():
            write_tokenizer(folder, model.num_choices)
        race = Race(
            args=args,
            model=model,
            knobs=_knobs(args, folder, model),
            measures=measures,
            turns=(),
            limits={
                name: card.of_cards(args.tensor_parallel)
                for name, card in ({} if args.device == "cpu" else find_ceilings()).items()
            },
            columns=columns,
        )
        for system in _order(args):
            knobs = race.knobs
            if args.peer_defaults and system != OURS:
                knobs = replace(knobs, max_num_seqs=0, max_num_batched_tokens=0)
            log = files.path(f"_{len(race.turns)}_{system}.log")
            turn = take_turn(system, knobs, measures, log)
            race = replace(race, turns=(*race.turns, turn))
            # at once: the next system may take longer than somebody has
            lines = _lines(race, turn)
            print(f"{system}: {turn.facts}", *lines, *turn.errors, sep="\n", flush=True)
            files.write(race.document())
    for places in race.kinds():
        _show(race, places)
    _plot(race, files.path(".png"))
    files.finish(race.document(), race.headline())
    return int(any(turn.errors for turn in race.turns))


def label(measure: Measure) -> str:
    """Name a measure in a word or two: what distinguishes it from others of its kind."""
    fields = asdict(measure)
    forms = {"trace": "{}", "rate_per_s": "{:g} req/s", "batch": "batch {}", "width": "width {}",
             "num_prompts": "{} prompts", "input_len": "{} in", "output_len": "{} out",
             "num_schemas": "{} schemas"}  # fmt: skip
    if not fields.get("num_schemas"):
        del forms["num_schemas"]
    return ", ".join(form.format(fields[name]) for name, form in forms.items() if name in fields)


def _lines(race: Race, turn: SystemTurn) -> list[str]:
    """What a system has measured, a line for each measure."""
    lines = []
    for measure, figures in zip(race.measures, turn.figures, strict=True):
        shown = (
            f"{_cell(figures, column)} {column.title.replace(chr(10), ' ')}"
            for column in race.columns(measure)
        )
        lines.append(f"  {turn.system}, {label(measure)}: {', '.join(shown)}")
    return lines


def _order(args: argparse.Namespace) -> list[str]:
    named = args.order.split(",") if args.order else []
    order = named or ([OURS, args.peer, OURS] if args.peer else [OURS])
    for system in order:
        if system not in MODULES:
            raise ValueError(f"--order names {system!r}, not one of {', '.join(MODULES)}")
        if system != OURS and find_spec(system) is None:
            raise ValueError(
                f"the peer {system} cannot be imported here: install it or leave it out"
            )
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
        tensor_parallel_size=args.tensor_parallel,
        inter_token_latency_s=args.inter_token_latency_ms / 1e3,
    )


def _blocks_that_fit(args: argparse.Namespace, model: ModelConfig) -> int:
    """The same number for all systems, since each would keep another reserve."""
    memory_bytes = machine.card_memory_bytes()
    if args.device == "cpu" or memory_bytes is None:
        return _CPU_TOKENS // int(args.block_size)
    tensors = ARCHITECTURES[model.architecture].tensors(model)
    num_ranks = args.tensor_parallel
    weights = 2 * sum(math.prod(shape) for shape in tensors.values()) / num_ranks
    free_bytes = memory_bytes * _MEMORY_SHARE - weights - _RESERVE_BYTES
    return int(free_bytes // (args.block_size * model.kv_bytes_per_token(2, num_ranks)))


def _show(race: Race, places: Sequence[int]) -> None:
    """Print the table of the measures of one kind."""
    kind = race.measures[places[0]]
    columns, rows = race.columns(kind), []
    for place in places:
        measure = race.measures[place]
        least = [
            least_seconds(measure, race.model, race.knobs, limits)
            for limits in race.limits.values()
        ]
        for turn in race.turns:
            figures = turn.figures[place]
            cells = [_cell(figures, column) for column in columns]
            shares = [_share(measure, figures, least_s) for least_s in least]
            rows.append((label(measure), turn.system, *cells, *shares))
        if race.has_peer:
            ratios = [race.ratio(place, column) for column in columns]
            rows.append(("", "ours / peer", *ratios, *[""] * len(least)))
    limits = (f"% of\n{name}" for name in race.limits)
    titles = ("measure", "system", *(column.title for column in columns), *limits)
    report.print_table(f"{machine.name()}, {type(kind).__name__.lower()}", titles, rows)


def _cell(figures: MeasuredFigures, column: Column) -> str:
    return f"{figures[column.key] * column.scale:.4g}" if figures else "failed"


def _share(measure: Measure, figures: MeasuredFigures, least_s: float | None) -> str:
    taken_s = figures.get("step_s" if isinstance(measure, Decode) else "wall_s")
    return "-" if least_s is None or not taken_s else f"{100 * least_s / taken_s:.0f} %"


def _plot(race: Race, path: Path) -> None:
    """Bars of the first figure of every measure, one colour for each system."""
    kinds = race.kinds()
    figure, axes = panels(len(kinds), 4.5 * len(kinds), 3.6)
    for panel, places in zip(axes, kinds, strict=True):
        column = race.columns(race.measures[places[0]])[0]
        width = 0.8 / len(race.turns)
        for number, turn in enumerate(race.turns):
            heights = [turn.figures[i].get(column.key, 0.0) * column.scale for i in places]
            lefts = [place + number * width for place in range(len(places))]
            colour = "tab:blue" if turn.system == OURS else "tab:orange"
            panel.bar(lefts, heights, 0.9 * width, color=colour, label=turn.system)
        labels = [label(race.measures[place]) for place in places]
        panel.set_xticks(range(len(places)), labels, fontsize=7)
        panel.set_ylabel(column.title.replace("\n", " "))
    axes[0].legend(frameon=False)
    save(figure, path)
