"""The values that cross module and process borders: requests, plans, results, outputs.

Everything here is frozen, and imported from here. Numbers that come one per row or per token travel
as columns (`array.array`), never as one Python object each.
"""

from engine.types.columns import FloatColumn, IntColumn, float32, int8, int32, int64
from engine.types.memory import Capacity, MemoryUsage, PinnedPrefix
from engine.types.output import (
    BEAM_CHOICE,
    ENDED_BY_PATTERN,
    ENDED_BY_TOKEN,
    LOST_REASONS,
    PROMPT_CHOICE,
    EventKind,
    FinishReason,
    Refusal,
    RequestEvents,
    StepOutput,
    StepStats,
    WorkCounts,
)
from engine.types.progress import Progress, SearchSteps
from engine.types.request import (
    ALL_CHOICES,
    GRAMMAR_LIMITS,
    PATTERN_MET,
    Pin,
    Pooling,
    Request,
    SamplingParams,
    StopPattern,
)
from engine.types.snapshot import EngineSnapshot, PoolSnapshot, RequestState
from engine.types.step import KEY_WORDS, NONE_ALLOWED, RowAdmission, StepPlan, StepResult
from engine.types.terms import ORDINARY_TERMS, Terms

__all__ = [
    "ALL_CHOICES",
    "BEAM_CHOICE",
    "ENDED_BY_PATTERN",
    "ENDED_BY_TOKEN",
    "GRAMMAR_LIMITS",
    "KEY_WORDS",
    "LOST_REASONS",
    "NONE_ALLOWED",
    "ORDINARY_TERMS",
    "PATTERN_MET",
    "PROMPT_CHOICE",
    "Capacity",
    "EngineSnapshot",
    "EventKind",
    "FinishReason",
    "FloatColumn",
    "IntColumn",
    "MemoryUsage",
    "Pin",
    "PinnedPrefix",
    "PoolSnapshot",
    "Pooling",
    "Progress",
    "Refusal",
    "Request",
    "RequestEvents",
    "RequestState",
    "RowAdmission",
    "SamplingParams",
    "SearchSteps",
    "StepOutput",
    "StepPlan",
    "StepResult",
    "StepStats",
    "StopPattern",
    "Terms",
    "WorkCounts",
    "float32",
    "int8",
    "int32",
    "int64",
]
