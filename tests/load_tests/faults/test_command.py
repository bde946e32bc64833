import argparse
from dataclasses import replace

import pytest

from load_tests.faults.command import add_arguments, is_kept
from load_tests.faults.trial import Trial

TRIAL = Trial(
    fault="worker-killed",
    num_right=3,
    num_cut=0,
    wrong=(),
    errors=(),
    num_open=2,
    stall_s=0.5,
    next_answer_s=0.1,
)


@pytest.mark.parametrize(
    ("trial", "kept"),
    [
        (TRIAL, True),
        (replace(TRIAL, wrong=("beams",)), False),
        (replace(TRIAL, errors=("engine_failed",)), False),
        (replace(TRIAL, num_cut=1), False),
        (replace(TRIAL, num_cut=1, fault="ingress-killed"), True),
        (replace(TRIAL, num_cut=1, fault="none"), False),
    ],
)
def test_only_clients_of_a_dead_process_may_be_cut(trial: Trial, kept: bool) -> None:
    assert is_kept(trial) is kept


def test_an_unknown_fault_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert parser.parse_args(["--faults", "none,proxy-killed"]).faults == ["none", "proxy-killed"]
    with pytest.raises(SystemExit):
        parser.parse_args(["--faults", "proxy-kiled"])
    assert "'proxy-kiled' is none of worker-killed" in capsys.readouterr().err
