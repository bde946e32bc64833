"""How far the start of a server is, from the lines of its log."""

from collections.abc import Iterator
from dataclasses import dataclass

from app.command.start.log_lines import LogLine


@dataclass(frozen=True, slots=True, kw_only=True)
class StartStage:
    """A part of the start.

    Attributes:
        name: one word.
        detail: what is known of it.
        done, total: how far it is, in `unit`; a total of 0 is not known.
        is_over: whether it has ended.
    """

    name: str
    detail: str = ""
    done: float = 0.0
    total: float = 0.0
    unit: str = ""
    is_over: bool = False


class StartProgress:
    """Turns lines into stages; a server with several replicas has those of the first."""

    def __init__(self) -> None:
        self._over: set[str] = set()

    def stages(self, line: LogLine) -> Iterator[StartStage]:
        """What a line says about the start, each stage ended at most once."""
        for stage in _read(line):
            if stage.name in self._over:
                continue
            if stage.is_over:
                self._over.add(stage.name)
            yield stage


def _read(line: LogLine) -> Iterator[StartStage]:
    if "Started a local Ray instance" in line.text:
        yield StartStage(name="Ray", detail="local", is_over=True)
        yield StartStage(name="engine", detail="starting its processes")
    elif "Connecting to existing Ray cluster" in line.text:
        yield StartStage(name="Ray", detail="a cluster that runs already", is_over=True)
        yield StartStage(name="engine", detail="starting its processes")
    elif line.is_ours:
        yield from _of_event(line)


def _of_event(line: LogLine) -> Iterator[StartStage]:
    values = line.values
    if line.event == "weights_loading":
        done, total = _number(values.get("bytes")), _number(values.get("of"))
        if total:
            yield StartStage(name="engine", detail="processes started", is_over=True)
            yield StartStage(
                name="weights",
                detail="dummy" if values.get("source") == "dummy" else "",
                done=done / 1e6,
                total=total / 1e6,
                unit="MB",
            )
    elif line.event == "graphs_captured":
        done, total = _number(values.get("done")), _number(values.get("of"))
        is_over = done >= total > 0
        yield StartStage(name="graphs", done=done, total=total, is_over=is_over)
    elif line.event == "kernels_compiling":
        yield StartStage(name="kernels", detail="compiling")
    elif line.event == "kernels_compiled":
        done, total = _number(values.get("done")), _number(values.get("of"))
        yield StartStage(name="kernels", done=done, total=total, is_over=done >= total > 0)
    elif line.event == "weights_loaded":
        what = "dummy, drawn" if values.get("source") == "dummy" else "loaded"
        detail = f"{what} in {values.get('seconds', '')} s"
        yield StartStage(name="engine", detail="processes started", is_over=True)
        yield StartStage(name="weights", detail=detail, is_over=True)
    elif line.event == "prefixes_pinned":
        yield StartStage(name="prefixes", detail=f"{values.get('count', '')} pinned", is_over=True)


def _number(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
