"""The longest of recent times, of steps with prompts and of others."""

# what the longest time loses of its weight with each further one of its kind
_FORGETTING = 0.98


class LongestOfLate:
    """What a part of a step takes at the most, as far as recent ones show.

    Steps with prompts count apart: they are planned, and launched kernel by kernel, for longer.
    """

    def __init__(self) -> None:
        self._seconds = {True: 0.0, False: 0.0}

    def add(self, seconds: float, *, has_prompts: bool) -> None:
        """Note how long it took in a step."""
        before_s = self._seconds[has_prompts]
        self._seconds[has_prompts] = max(seconds, _FORGETTING * before_s)

    def seconds(self, *, has_prompts: bool) -> float:
        """What it may take; 0 before the first step of the kind."""
        return self._seconds[has_prompts]
