"""Reads the lines that the processes of a server write: Ray's, Serve's and ours."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

# `(ServeReplica:pagoda:Engine pid=14687)`, and colours around it
_SOURCE = re.compile(
    r"^(?:\x1b\[\d+m)*\((?P<source>[^()]*?)(?: pid=\d+)?(?:, ip=[^()]*)?\)(?:\x1b\[\d+m)* ?"
)
_COLOUR = re.compile(r"\x1b\[\d*m")
# Serve's and ours: `INFO 2026-11-29 22:44:13,978 pagoda_Engine 34lxaim7 -- text`
_TEXT = re.compile(r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \S+ \S+ .*? -- (?P<text>.*)$")
_EVENT = re.compile(r"^[a-z][a-z0-9_]+(?=:? |$)")
_PAIR = re.compile(r"(\w+)=(\S+)")
# processes whose lines are ours; those of Serve itself say nothing that a user can act on
_OURS = re.compile(r"^(ServeReplica:|RankActor|SchedulerActor|build_serve_application|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line.

    Attributes:
        source: kind of process, such as `ServeReplica:pagoda:Engine`; empty for `serve run` itself.
        level: as `logging` has it; empty for a line that is not of a logger.
        text: without what stands in front of it.
        event: its first word if it is one of ours.
        values: `key=value` pairs behind the event.
    """

    source: str
    level: str
    text: str
    event: str = ""
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        """Whether one of our own loggers wrote it."""
        return bool(self.event) and bool(_OURS.match(self.source))


def read_line(line: str) -> LogLine:
    """Take a line apart; whatever it is, its text is kept."""
    line = line.rstrip("\n")
    found = _SOURCE.match(line)
    source = found["source"] if found else ""
    rest = _COLOUR.sub("", line[found.end() :] if found else line)
    level, text = _message(rest)
    if not level:
        return LogLine(source=source, level="", text=text)
    event = _EVENT.match(text)
    # a sentence is no event: `Started HTTP server`, but also `in words`
    name = event[0] if event and ("_" in event[0] or "=" in text) else ""
    pairs = dict(_PAIR.findall(text)) if name else {}
    return LogLine(source=source, level=level, text=text, event=name, values=pairs)


def _message(line: str) -> tuple[str, str]:
    if line.startswith("{"):
        try:
            fields = json.loads(line)
            return str(fields["levelname"]), str(fields["message"])
        except (ValueError, KeyError, TypeError):
            return "", line
    found = _TEXT.match(line)
    return (found["level"], found["text"]) if found else ("", line)
