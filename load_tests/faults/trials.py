"""Trials that have run, in a file that each is appended to, so that a run can go on later."""

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from load_tests import report
from load_tests.faults.trial import NO_FAULT, Trial
from load_tests.faults.victims import FAULTS


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialId:
    """Which trial: of which fault, with how many engine replicas, and which of its repeats."""

    fault: str
    num_replicas: int
    repeat: int


Trials = dict[TrialId, Trial]


def read(path: Path) -> Trials:
    """Read the trials of a file; none if it does not exist."""
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(map(_from_line, lines))


def append(path: Path, trial_id: TrialId, trial: Trial) -> None:
    """Write one more trial, so that it is there whatever happens next."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"id": asdict(trial_id), "trial": asdict(trial)}) + "\n")


def is_kept(trial: Trial) -> bool:
    """Whether each request of a trial was answered as promised, and nothing is left of it.

    Connections may break, and answers fail, where the process that held them died, and only then.
    """
    may_cut = trial.fault != NO_FAULT and FAULTS[trial.fault].cuts_clients
    is_answered = may_cut or not (trial.num_cut or trial.errors)
    return is_answered and not trial.wrong and not trial.left


def show(trials: Trials) -> None:
    """Print a row for each fault and number of replicas."""
    columns = (
        "fault, replicas", "trials", "kept", "requests", "open then", "cut or failed", "wrong",
        "noticed s", "next answer s", "stall s", "all back s",
    )  # fmt: skip
    groups = list(_groups(trials))
    report.print_table(
        "Faults under load; seconds: median / longest", columns, [_row(*group) for group in groups]
    )


def headline(trials: Trials) -> str:
    """All trials in one line."""
    kept = sum(map(is_kept, trials.values()))
    right = sum(trial.num_right for trial in trials.values())
    sent = sum(trial.num_requests for trial in trials.values())
    return f"{kept} of {len(trials)} trials kept every promise; {right} of {sent} answers right"


def in_words(trial: Trial) -> str:
    """One trial in one line."""
    kinds = f" ({', '.join(sorted(set(trial.wrong)))})" if trial.wrong else ""
    errors = f", errors {', '.join(sorted(set(trial.errors)))}" if trial.errors else ""
    left = f", left: {'; '.join(trial.left)}" if trial.left else ""
    seconds = (trial.noticed_s, trial.next_answer_s, trial.stall_s, trial.back_s)
    return (
        f"{trial.num_right} of {trial.num_requests} right, {trial.num_open} open then, "
        f"{trial.num_cut} cut, {len(trial.wrong)} wrong{kinds}{errors}{left}; noticed, next answer,"
        f" stall, back: {' / '.join('-' if s is None else f'{s:.1f}' for s in seconds)} s"
    )


def _from_line(line: str) -> tuple[TrialId, Trial]:
    record = json.loads(line)
    fields = record["trial"]
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return TrialId(**record["id"]), Trial(**(fields | lists))


def _groups(trials: Trials) -> Iterator[tuple[str, list[Trial]]]:
    names = dict.fromkeys((it.fault, it.num_replicas) for it in trials)
    for fault, num_replicas in names:
        group = [
            trial
            for it, trial in trials.items()
            if (it.fault, it.num_replicas) == (fault, num_replicas)
        ]
        yield f"{fault}, {num_replicas}", group


def _row(name: str, trials: Sequence[Trial]) -> tuple[str, ...]:
    sums = (
        len(trials),
        sum(map(is_kept, trials)),
        sum(trial.num_requests for trial in trials),
        sum(trial.num_open for trial in trials),
        sum(trial.num_cut + len(trial.errors) for trial in trials),
        sum(len(trial.wrong) for trial in trials),
    )
    columns: tuple[list[float | None], ...] = (
        [trial.noticed_s for trial in trials],
        [trial.next_answer_s for trial in trials],
        [trial.stall_s for trial in trials],
        [trial.back_s for trial in trials],
    )
    return name, *map(str, sums), *map(_median_and_longest, columns)


def _median_and_longest(values: Sequence[float | None]) -> str:
    seconds = [value for value in values if value is not None]
    return f"{statistics.median(seconds):.1f} / {max(seconds):.1f}" if seconds else "-"
