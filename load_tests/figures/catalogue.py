"""The paper's experiments that are simulated (sections 6 and 7), frozen."""

from collections.abc import Iterable
from dataclasses import replace

from load_tests.figures.definitions import SYSTEMS, Cell, Curve, Panel, Scale, System, Workload
from load_tests.figures.rates import BASIC, BEAM, CHAT, PARALLEL, PREFIX, Rates

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RATE = "request rate (req/s)"
LATENCY = "norm_latency_s"
MODELS = ("13B", "66B", "175B")
# of the experiments with one rate, whose means differ by 7 % between traces
SEEDS = (0, 1, 2)
# seconds of arrivals
HOUR, QUARTER = 3600.0, 900.0

# without FasterTransformer
ORCA_AND_PAGED: tuple[System, ...] = ("paged", "orca_oracle", "orca_pow2", "orca_max")


def catalogue(scale: Scale) -> tuple[Panel, ...]:
    """Every panel that is simulated, in the paper's order."""
    panels = (
        *_memory(scale),
        *_basic(scale),
        *_several(scale),
        *_saving(scale),
        *_prefix(scale),
        _against_rate("17", "", "chat, OPT-13B", CHAT, _cell("chat", HOUR, scale), scale),
        *_block_sizes(scale),
    )
    return tuple(map(_ends, panels)) if scale.only_ends else panels


def _memory(scale: Scale) -> Iterable[Panel]:
    """Figures 2 and 13: one rate, means over the last two thirds of the arrivals."""
    choices: tuple[tuple[str, str, Workload, float, str], ...] = (
        ("2", "", "sharegpt", 4.0, "filled"),
        ("13", "a", "sharegpt", 2.0, "num_sequences"),
        ("13", "b", "alpaca", 30.0, "num_sequences"),
    )
    for figure, letter, workload, rate, y in choices:
        duration_s = min(QUARTER, scale.longest_window_s)
        cell = Cell(
            workload=workload,
            rate_per_s=rate,
            duration_s=duration_s,
            window_from_s=duration_s / 3,
        )
        curves = tuple(
            Curve(
                label=SYSTEMS[system][0],
                points=tuple((rate, replace(cell, system=system, seed=seed)) for seed in SEEDS),
            )
            for system in ORCA_AND_PAGED
        )
        yield Panel(
            figure=figure,
            letter=letter,
            title=f"{_name(workload)}, OPT-13B, {rate:g} req/s",
            x_label=RATE,
            y=y,
            curves=curves,
        )


def _basic(scale: Scale) -> Iterable[Panel]:
    letters = iter("abcdef")
    for workload, by_model in BASIC.items():
        for model, rates in zip(MODELS, by_model, strict=True):
            cell = _cell(workload, QUARTER if model == "175B" else HOUR, scale, model=model)
            title = f"{_name(workload)}, OPT-{model}"
            yield _against_rate("12", next(letters), title, rates, cell, scale)


def _several(scale: Scale) -> Iterable[Panel]:
    letters = iter("abcdef")
    for n, rates in PARALLEL.items():
        cell = _cell("alpaca", HOUR, scale, n=n)
        yield _against_rate("14", next(letters), f"parallel sampling, n = {n}", rates, cell, scale)
    for width, rates in BEAM.items():
        cell = _cell("alpaca", HOUR, scale, n=width, beam_width=width)
        yield _against_rate(
            "14", next(letters), f"beam search, width = {width}", rates, cell, scale
        )


def _saving(scale: Scale) -> Iterable[Panel]:
    """Figure 15, and the same with ShareGPT, of which the paper tells in the text."""
    rates: dict[Workload, float] = {"alpaca": 20.0, "sharegpt": 2.0}
    for letter, title in (("a", "parallel sampling"), ("b", "beam search")):
        curves = []
        for workload, rate in rates.items():
            duration_s = min(QUARTER, scale.longest_window_s)
            if workload == "alpaca":
                duration_s = min(QUARTER, scale.longest_alpaca_s)
            cells = [
                Cell(
                    workload=workload,
                    rate_per_s=rate,
                    duration_s=duration_s,
                    window_from_s=duration_s / 3,
                    n=n,
                    beam_width=n if letter == "b" else 0,
                )
                for n in (2, 4, 6)
            ]
            points = tuple((float(cell.n), cell) for cell in cells)
            curves.append(Curve(label=_name(workload), points=points))
        yield Panel(
            figure="15",
            letter=letter,
            title=title,
            x_label="sequences of a request",
            y="saving",
            curves=tuple(curves),
        )


def _prefix(scale: Scale) -> Iterable[Panel]:
    titles = ("1 example, 80 tokens", "5 examples, 341 tokens")
    for letter, title, (workload, rates) in zip("ab", titles, PREFIX.items(), strict=True):
        yield _against_rate("16", letter, title, rates, _cell(workload, 1200.0, scale), scale)


def _block_sizes(scale: Scale) -> Iterable[Panel]:
    """Figures 18b and 19b: one rate, all block sizes."""
    sharegpt = replace(_cell("sharegpt", 600.0, scale), rate_per_s=2.01)
    alpaca = replace(_cell("alpaca", 600.0, scale), rate_per_s=30.1)
    yield _against_block_size(
        "18",
        "block size at a fixed rate",
        {"ShareGPT": sharegpt, "Alpaca": alpaca},
    )
    yield _against_block_size(
        "19",
        "recomputation and swapping, ShareGPT",
        {
            "recompute": replace(sharegpt, preemption="recompute"),
            "swap": replace(sharegpt, preemption="swap"),
        },
    )


def _against_rate(
    figure: str, letter: str, title: str, rates: Rates, cell: Cell, scale: Scale
) -> Panel:
    curves = tuple(
        Curve(
            label=SYSTEMS[system][0],
            points=tuple(
                (
                    rate,
                    replace(
                        cell,
                        system=system,
                        rate_per_s=rate,
                        duration_s=max(cell.duration_s, scale.least_requests / rate),
                    ),
                )
                for rate in values
            ),
        )
        for system, values in rates.items()
    )
    return Panel(figure=figure, letter=letter, title=title, x_label=RATE, y=LATENCY, curves=curves)


def _against_block_size(figure: str, title: str, cells: dict[str, Cell]) -> Panel:
    curves = tuple(
        Curve(
            label=label,
            points=tuple((float(size), replace(cell, block_size=size)) for size in BLOCK_SIZES),
        )
        for label, cell in cells.items()
    )
    return Panel(
        figure=figure,
        letter="b",
        title=title,
        x_label="block size (tokens)",
        y=LATENCY,
        curves=curves,
    )


def _cell(
    workload: Workload,
    paper_s: float,
    scale: Scale,
    *,
    model: str = "13B",
    n: int = 1,
    beam_width: int = 0,
) -> Cell:
    is_dense = workload not in ("sharegpt", "chat")
    return Cell(
        model=model,
        workload=workload,
        rate_per_s=0.0,
        duration_s=scale.duration_s(paper_s, is_dense=is_dense),
        n=n,
        beam_width=beam_width,
    )


def _name(workload: str) -> str:
    return {"sharegpt": "ShareGPT", "alpaca": "Alpaca"}[workload]


def _ends(panel: Panel) -> Panel:
    """Keep the first and the last point of each curve."""
    curves = tuple(
        replace(curve, points=tuple(dict.fromkeys((curve.points[0], curve.points[-1]))))
        for curve in panel.curves
    )
    return replace(panel, curves=curves)
