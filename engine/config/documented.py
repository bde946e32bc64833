"""What a field of a configuration carries beside its default: its meaning and its range."""

from collections.abc import Mapping
from dataclasses import Field
from typing import Any


def documented(doc: str, **bounds: float) -> Mapping[str, Any]:
    """Describe a field, as the `metadata` of `dataclasses.field`.

    The range is checked once, where a user's options are read (`app.settings.config`).

    Args:
        doc: the meaning in Markdown; the only text about the option, without its default.
        bounds: what a user's value must keep, of `ge`, `gt`, `le` and `lt`.
    """
    return {"doc": doc, "bounds": bounds}


def doc_of(field: "Field[Any]") -> str:
    """The meaning of a field that `documented` describes."""
    doc: str = field.metadata["doc"]
    return doc


def bounds_of(field: "Field[Any]") -> dict[str, float]:
    """The range of a field that `documented` describes; empty where every value is good."""
    return dict(field.metadata["bounds"])
