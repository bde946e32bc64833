"""Rows of the workers' table: which are free, and which the workers must be told to forget."""


class Rows:
    """Hands out rows [0, num_rows)."""

    def __init__(self, num_rows: int) -> None:
        self._free = list(range(num_rows - 1, -1, -1))
        self._released: list[int] = []

    @property
    def num_free(self) -> int:
        """Rows that nobody holds."""
        return len(self._free)

    def take(self) -> int:
        """Take a free row."""
        return self._free.pop()

    def give_back(self, row: int) -> None:
        """Free a row; the next plan tells the workers."""
        self._free.append(row)
        self._released.append(row)

    def take_released(self) -> list[int]:
        """Rows that were given back since the last call."""
        released, self._released = self._released, []
        return released
