"""Which requests of a client have not ended, and which of their choices."""

from collections.abc import Iterator


class OpenChoices:
    """Open requests, each with its open choices. A request ends with its last choice."""

    def __init__(self) -> None:
        self._choices: dict[int, set[int]] = {}

    def __len__(self) -> int:
        """Number of open requests."""
        return len(self._choices)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(request id, choice) of all open choices, in order."""
        for request_id, choices in sorted(self._choices.items()):
            for choice in sorted(choices):
                yield request_id, choice

    def __contains__(self, request_id: object) -> bool:
        """Whether a request is open."""
        return request_id in self._choices

    def of(self, request_id: int) -> list[int]:
        """The open choices of a request, in order."""
        return sorted(self._choices.get(request_id, ()))

    @property
    def request_ids(self) -> list[int]:
        """Ids of the open requests, in order."""
        return sorted(self._choices)

    @property
    def num_choices(self) -> int:
        """Number of open choices."""
        return sum(map(len, self._choices.values()))

    def open(self, request_id: int, num_choices: int) -> None:
        """Note a request; its choices are counted from 0."""
        self._choices[request_id] = set(range(num_choices))

    def close(self, request_id: int, choice: int) -> bool:
        """Note that a choice has ended; True if its request has ended with it."""
        choices = self._choices.get(request_id, set())
        if choice not in choices:
            return False
        choices.remove(choice)
        if choices:
            return False
        del self._choices[request_id]
        return True

    def clear(self) -> None:
        """Note that everything has ended."""
        self._choices.clear()
