"""The values that cross module and process borders: requests, plans, results, outputs.

Everything here is frozen, and imported from here. Numbers that come one per row or per token travel
as columns (`array.array`), never as one Python object each.
"""

from engine.types.columns import FloatColumn, IntColumn, float32, int32, int64
from engine.types.memory import Capacity, MemoryUsage, PinnedPrefix
from engine.types.output import (
    BEAM_CHOICE,
    ENDED_BY_PATTERN,
    ENDED_BY_TOKEN,
    PROMPT_CHOICE,
    FinishReason,
    Refusal,
    StepOutput,
    StepStats,
)
from engine.types.progress import Progress, SearchSteps
from engine.types.request import ALL_CHOICES, PATTERN_MET, Pin, Request, SamplingParams, StopPattern
from engine.types.step import KEY_WORDS, NONE_ALLOWED, RowAdmission, StepPlan, StepResult
from engine.types.terms import ORDINARY_TERMS, Terms

__all__ = [
    "ALL_CHOICES",
    "BEAM_CHOICE",
    "ENDED_BY_PATTERN",
    "ENDED_BY_TOKEN",
    "KEY_WORDS",
    "NONE_ALLOWED",
    "ORDINARY_TERMS",
    "PATTERN_MET",
    "PROMPT_CHOICE",
    "Capacity",
    "FinishReason",
    "FloatColumn",
    "IntColumn",
    "MemoryUsage",
    "Pin",
    "PinnedPrefix",
    "Progress",
    "Refusal",
    "Request",
    "RowAdmission",
    "SamplingParams",
    "SearchSteps",
    "StepOutput",
    "StepPlan",
    "StepResult",
    "StepStats",
    "StopPattern",
    "Terms",
    "float32",
    "int32",
    "int64",
]
