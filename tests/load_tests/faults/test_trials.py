from dataclasses import replace
from pathlib import Path

import pytest

from load_tests.faults import trials
from load_tests.faults.trial import Trial
from load_tests.faults.trials import TrialId, is_kept

TRIAL = Trial(
    fault="worker-killed",
    num_right=3,
    num_cut=0,
    wrong=(),
    errors=(),
    num_open=2,
    stall_s=0.5,
    next_answer_s=0.1,
    noticed_s=0.2,
    back_s=4.0,
)
INGRESS = replace(TRIAL, fault="ingress-killed")


@pytest.mark.parametrize(
    ("trial", "kept"),
    [
        (TRIAL, True),
        (replace(TRIAL, wrong=("beams",)), False),
        (replace(TRIAL, errors=("engine_failed",)), False),
        (replace(TRIAL, num_cut=1), False),
        (replace(TRIAL, left=("proxy: 2 for 1",)), False),
        (replace(INGRESS, num_cut=1, errors=("http_500",)), True),
        (replace(INGRESS, wrong=("beams",)), False),
        (replace(INGRESS, left=("KV slots in use: 16 for 0",)), False),
        (replace(TRIAL, num_cut=1, fault="none"), False),
    ],
)
def test_only_clients_of_a_dead_process_may_be_cut(trial: Trial, kept: bool) -> None:
    assert is_kept(trial) is kept


def test_trials_are_read_as_they_were_appended(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    assert trials.read(path) == {}
    odd = replace(INGRESS, wrong=("beams", "n=3"), back_s=None, left=("proxy: 2 for 1",))
    expected = {}
    for repeat, trial in enumerate((TRIAL, odd)):
        trial_id = TrialId(fault=trial.fault, num_replicas=2, repeat=repeat)
        expected[trial_id] = trial
        trials.append(path, trial_id, trial)
    assert trials.read(path) == expected


def test_the_table_has_a_row_for_each_fault_and_number_of_replicas(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ids = [TrialId(fault=TRIAL.fault, num_replicas=n, repeat=r) for n in (1, 2) for r in (0, 1)]
    done = {it: replace(TRIAL, back_s=4.0 + it.repeat) for it in ids}
    trials.show(done)
    rows = [line for line in capsys.readouterr().out.splitlines() if "worker-killed" in line]
    assert [row.split("│")[1].strip() for row in rows] == [
        "worker-killed, 1",
        "worker-killed, 2",
    ]
    assert all("4.5 / 5.0" in row for row in rows)
    assert trials.headline(done) == "4 of 4 trials kept every promise; 12 of 12 answers right"


def test_a_trial_says_what_went_wrong() -> None:
    bad = replace(TRIAL, wrong=("n=3",), errors=("http_503",), left=("proxy: 2 for 1",))
    words = trials.in_words(bad)
    assert "1 wrong (n=3), errors http_503, left: proxy: 2 for 1; noticed" in words
    assert words.endswith("0.2 / 0.1 / 0.5 / 4.0 s")
