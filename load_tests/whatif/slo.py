"""Service levels, and how many replicas keep one."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

from load_tests.traffic.latencies import Objective

LIMITS = ("ttft", "tpot")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """How many replicas are needed.

    Attributes:
        num_replicas: the fewest that keep the level; None if the most that were tried do not.
        good_shares: replicas -> share of the requests that were good, for all that were tried.
    """

    num_replicas: int | None
    good_shares: dict[int, float]


def parse_slo(text: str) -> Objective:
    """Read `ttft=SECONDS,tpot=SECONDS`; a limit that is not named does not bind.

    Raises:
        ArgumentTypeError: naming what is wrong.
    """
    limits = dict.fromkeys(LIMITS, float("inf"))
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in limits:
            nearest = get_close_matches(name, LIMITS, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(LIMITS)}"
            raise ArgumentTypeError(f"has no limit {name!r}; {hint}")
        try:
            limits[name] = float(value)
        except ValueError:
            raise ArgumentTypeError(f"{name} is {value!r}, not a number of seconds") from None
        if not limits[name] > 0:
            raise ArgumentTypeError(f"{name} is {value}, not above 0")
    return Objective(ttft_s=limits["ttft"], tpot_s=limits["tpot"])


def size(good_share: Callable[[int], float], share: float, most: int) -> Sizing:
    """Find the fewest replicas that serve a share of the requests well.

    Args:
        good_share: of so many replicas; rises with them.
        share: that is wanted.
        most: replicas that are tried.
    """
    tried: dict[int, float] = {}

    def is_enough(count: int) -> bool:
        tried[count] = good_share(count)
        return tried[count] >= share

    too_few, enough = 0, 1
    while not is_enough(enough):
        too_few = enough
        if enough == most:
            return Sizing(num_replicas=None, good_shares=dict(sorted(tried.items())))
        enough = min(2 * enough, most)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_enough(middle) else (middle, enough)
    return Sizing(num_replicas=enough, good_shares=dict(sorted(tried.items())))
