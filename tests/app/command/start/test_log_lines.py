import pytest

from app.command.start.log_lines import LogLine, read_line


@pytest.mark.parametrize(
    "line",
    [
        "(ServeReplica:pagoda:Engine pid=1) INFO 2026-11-29 22:44:13,978 pagoda_Engine 34lx -- "
        "weights_loading bytes=3 of=9 seconds=2.0",
        "\x1b[36m(ServeReplica:pagoda:Engine pid=1, ip=10.0.0.7)\x1b[0m "
        "INFO 2026-11-29 22:44:13,978 pagoda_Engine x -- weights_loading bytes=3 of=9 seconds=2.0",
        '(ServeReplica:pagoda:Engine pid=1) {"levelname": "INFO", "message": '
        '"weights_loading bytes=3 of=9 seconds=2.0"}',
    ],
)
def test_a_line_of_ours_is_an_event_with_values(line: str) -> None:
    found = read_line(line)
    assert (found.source, found.level) == ("ServeReplica:pagoda:Engine", "INFO")
    assert (found.event, found.is_ours) == ("weights_loading", True)
    assert found.values == {"bytes": "3", "of": "9", "seconds": "2.0"}


@pytest.mark.parametrize(
    "line",
    [
        "(ServeController pid=1) WARNING 2026-11-29 22:43:21,092 controller 1 -- some_event a=1",
        "(ServeReplica:pagoda:Ingress pid=1) INFO 2026-11-29 22:44:11,534 a b -- Started a server",
        "(ServeReplica:pagoda:Ingress pid=1) INFO 2026-11-29 22:44:11,534 a b -- words only",
        "Traceback (most recent call last):",
        "{not json",
        "",
    ],
)
def test_other_lines_are_none_of_ours(line: str) -> None:
    assert not read_line(line).is_ours


def test_whatever_a_line_is_its_text_is_kept() -> None:
    assert read_line("error: no\n") == LogLine(source="", level="", text="error: no")
    assert read_line("(raylet) killed").text == "killed"
