from datetime import datetime
from pathlib import Path

from load_tests.faults.server_log import first_loss_s

LINE = "(ServeReplica:pagoda:Ingress pid=7) INFO 2026-11-29 19:36:{} pagoda_Ingress x -- {}\n"
STRUCK_S = datetime(2026, 11, 29, 19, 36, 8).astimezone().timestamp()


def test_the_first_loss_after_the_fault_counts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = [
        LINE.format("07,900", "request_lost request_id=1 reason=before"),
        "2026-11-29 19:36:08,100 nothing was lost\n",
        LINE.format("09,750", "request_lost request_id=2 reason=after"),
        LINE.format("08,250", "gang_lost replica=a open=1 reason=died"),
    ]
    log.write_text("".join(lines))
    assert first_loss_s(log, STRUCK_S) == 0.25
    assert first_loss_s(log, STRUCK_S + 5.0) is None
