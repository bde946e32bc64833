"""`make fuzz`: many damaged bodies on all cores, or one of them again."""

import argparse
import multiprocessing
import os
import sys
import time
from functools import partial

from tests.app.fuzz.mutator import Mutator
from tests.app.fuzz.run import APP_PERIOD, Outcome, run, shown

_PART = 5000


def main() -> None:
    """Try bodies; ends with status 1 if any led to what it must not."""
    parser = argparse.ArgumentParser(prog="python -m tests.app.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of all bodies")
    parser.add_argument("--count", type=int, default=1_000_000, help="bodies to try")
    parser.add_argument("--show", type=int, metavar="NUMBER", help="print one body and its outcome")
    parser.add_argument(
        "--period",
        type=int,
        default=APP_PERIOD,
        help="one of so many goes through the whole application, the others through the parsers",
    )
    given = parser.parse_args()
    if given.show is not None:
        path, body = Mutator(given.seed).make(given.show)
        print(f"{path} {body!r}")
        outcome = run(given.seed, [given.show], app_period=1)
    else:
        outcome = _all(given.seed, given.count, given.period)
    print(*shown(outcome, Mutator(given.seed))[:50], sep="\n")
    print(f"{dict(outcome.statuses)}, {len(outcome.findings)} findings")
    sys.exit(bool(outcome.findings))


def _all(seed: int, count: int, period: int) -> Outcome:
    """Try all bodies, in as many processes as there are cores."""
    outcome, start_s = Outcome(), time.perf_counter()
    parts = [range(start, min(start + _PART, count)) for start in range(0, count, _PART)]
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for part in pool.imap_unordered(partial(run, seed, app_period=period), parts):
            outcome.add(part)
            done = outcome.statuses.total()
            print(f"\r{done:,} bodies, {len(outcome.findings)} findings", end="", flush=True)
    slowest_s, number, path = outcome.slowest
    print(
        f"\n{time.perf_counter() - start_s:.0f} s; slowest: {number} of {path}, {slowest_s:.3f} s"
    )
    return outcome


if __name__ == "__main__":
    main()
