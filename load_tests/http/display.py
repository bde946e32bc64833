"""Shows how many requests of a case are sent, open and failed."""

from types import TracebackType

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


class Display:
    """A line on the screen while it is entered as a context."""

    def __init__(self, label: str, total: int, *, is_shown: bool = True) -> None:
        self._counts = {"sent": 0, "done": 0, "failed": 0}
        self._progress = Progress(
            TextColumn("[progress.description]{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[counts]}"),
            TimeElapsedColumn(),
            # drawing shares the interpreter with sending
            refresh_per_second=2,
            transient=True,
            disable=not is_shown,
        )
        self._task = self._progress.add_task(label, total=total, counts="")

    def __enter__(self) -> "Display":
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def count(self, **changes: int) -> None:
        """Count requests that were sent, that are done, and those of them that failed."""
        counts = self._counts
        for name, change in changes.items():
            counts[name] += change
        words = f"{counts['sent']} sent, {counts['sent'] - counts['done']} open, "
        words += f"{counts['failed']} failed"
        self._progress.update(self._task, completed=counts["done"], counts=words)
