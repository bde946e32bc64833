"""Shows a start on a terminal with a moving line, elsewhere as plain lines without colours."""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from app.command.environment import own_environment
from app.command.start.progress import StartStage

if TYPE_CHECKING:
    from rich.progress import TaskID

_NAME_WIDTH = 9


class Display(Protocol):
    """Where a start is shown; may be used from several threads. When it is left, nothing moves."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.still()

    def say(self, text: str) -> None:
        """Show a line, or several."""
        ...

    def show(self, stage: StartStage) -> None:
        """Show how far a part of the start is."""
        ...

    def still(self) -> None:
        """Take away what moves."""
        ...


def make_display(stream: TextIO | None = None) -> Display:
    """The one that suits a stream: plain where it is no terminal or NO_COLOR is set."""
    stream = sys.stdout if stream is None else stream
    return PlainDisplay(stream) if is_plain(stream) else LiveDisplay(stream)


def is_plain(stream: TextIO) -> bool:
    """Whether a stream is to have no colours and nothing that moves."""
    environment = own_environment()
    return (
        not stream.isatty()
        or bool(environment.get("NO_COLOR"))
        or environment.get("TERM") == "dumb"
    )


class PlainDisplay(Display):
    """A line for each part of the start that is over, and no control characters."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def say(self, text: str) -> None:
        """See `Display`."""
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(text.encode(encoding, "replace").decode(encoding) + "\n")
        self._stream.flush()

    def show(self, stage: StartStage) -> None:
        """See `Display`."""
        if stage.is_over:
            self.say(line_of(stage))

    def still(self) -> None:
        """See `Display`: nothing moves."""


class LiveDisplay(Display):
    """Ended parts as lines, and below them one that moves for the part that goes on."""

    def __init__(self, stream: TextIO) -> None:
        # slow to import, and of no use in a pipe
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._console = Console(file=stream, highlight=False, markup=False, soft_wrap=True)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[counts]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._moves, self._is_still = False, False

    def say(self, text: str) -> None:
        """See `Display`."""
        self._console.print(text)

    def show(self, stage: StartStage) -> None:
        """See `Display`."""
        if stage.is_over:
            self._remove(stage.name)
            self.say(line_of(stage))
        elif not self._is_still:
            self._move(stage)

    def _move(self, stage: StartStage) -> None:
        if not self._moves:
            # not before: a model that is fetched first has a moving line of its own
            self._progress.start()
            self._moves = True
        total = stage.total or None
        counts = counts_of(stage)
        task = self._tasks.get(stage.name)
        if task is None:
            for name in list(self._tasks):
                self._remove(name)
            description = f"{stage.name:<{_NAME_WIDTH}} {stage.detail}".rstrip()
            task = self._progress.add_task(description, total=total, counts=counts)
            self._tasks[stage.name] = task
        self._progress.update(task, completed=stage.done, total=total, counts=counts)

    def still(self) -> None:
        """See `Display`."""
        self._is_still = True
        if self._moves:
            self._moves = False
            self._progress.stop()

    def _remove(self, name: str) -> None:
        if (task := self._tasks.pop(name, None)) is not None:
            self._progress.remove_task(task)


def line_of(stage: StartStage) -> str:
    """The line of a part that is over."""
    what = stage.detail or counts_of(stage)
    return f"✓ {stage.name:<{_NAME_WIDTH}} {what}".rstrip()


def counts_of(stage: StartStage) -> str:
    """How far a stage is, as `182 / 269 MB`; nothing if no total is known."""
    if not stage.total:
        return ""
    if stage.done >= stage.total:
        return f"{stage.total:,.0f} {stage.unit}".rstrip()
    return f"{stage.done:,.0f} / {stage.total:,.0f} {stage.unit}".rstrip()
