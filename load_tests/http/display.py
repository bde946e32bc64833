"""Shows how many requests of a case are sent, open and failed."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

# is called when a request was "sent", is "done", or has "failed"
Watch = Callable[[str], None]


@contextmanager
def display(label: str, total: int) -> Iterator[Watch]:
    """Show a line on the screen, which counts."""
    columns = (
        TextColumn("[progress.description]{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[counts]}"),
        TimeElapsedColumn(),
    )
    # two refreshes a second: drawing shares the interpreter with sending
    with Progress(*columns, refresh_per_second=2, transient=True) as progress:
        task, counts = progress.add_task(label, total=total, counts=""), Counter[str]()

        def watch(event: str) -> None:
            counts[event] += 1
            words = f"{counts['sent']} sent, {counts['sent'] - counts['done']} open, "
            words += f"{counts['failed']} failed"
            progress.update(task, completed=counts["done"], counts=words)

        yield watch
