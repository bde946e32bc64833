"""Rows of the workers' table: which are free, and which ones the workers must forget."""


class RowAllocator:
    """Hands out rows [0, num_rows)."""

    def __init__(self, num_rows: int) -> None:
        self._free = list(range(num_rows - 1, -1, -1))
        self._freed: list[int] = []

    @property
    def num_free(self) -> int:
        """Rows that no sequence has."""
        return len(self._free)

    def allocate(self) -> int:
        """Take a free row; the caller has asked `num_free`."""
        return self._free.pop()

    def free(self, row: int) -> None:
        """Give back a row; the next plan lists it, so that the workers forget it."""
        self._free.append(row)
        self._freed.append(row)

    def take_freed(self) -> list[int]:
        """Rows that were given back since the last call."""
        freed, self._freed = self._freed, []
        return freed
