"""The settings of requests that lose their engine."""

from dataclasses import dataclass, field

from engine.config.documented import documented


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeConfig:
    """How long and how often an ingress goes on with a request on another engine."""

    resume_timeout_s: float = field(
        default=120.0,
        metadata=documented(
            "how long a request may wait for an engine replica that takes it: at first, and each "
            "time after its replica, or the processes that ran it, were lost; 0 tries only once",
            ge=0,
            le=3600,
        ),
    )
    max_resumes: int = field(
        default=8,
        metadata=documented(
            "how often a request may lose its engine and go on where it was, on another replica "
            "or on the same one when its processes run again; a loss while it waited for its turn "
            "counts a sixteenth; 0 fails it the first time",
            ge=0,
            le=1000,
        ),
    )
