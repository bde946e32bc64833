"""Faults put into the core on purpose: one place of one function replaced by a wrong one."""

import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """Attributes: fault: what goes wrong; owner: the class or module that holds the function."""

    fault: str
    owner: Any
    function: Callable[..., Any]
    old: str
    new: str

    @property
    def name(self) -> str:
        """Name of the function in its owner."""
        return self.function.__name__

    def build(self) -> Callable[..., Any]:
        """The function with the fault.

        Raises:
            AssertionError: if the line is no longer there, so that the mutant must be rewritten.
        """
        source = textwrap.dedent(inspect.getsource(self.function))
        assert source.count(self.old) == 1, f"{self.function.__qualname__} has not one {self.old!r}"
        module = vars(sys.modules[self.function.__module__])
        scope: dict[str, Any] = {}
        exec(source.replace(self.old, self.new), module, scope)
        built: Callable[..., Any] = scope[self.name]
        return built


def mutant(fault: str, owner: Any, function: Any, old: str, new: str) -> Mutant:
    """Args: function: also a property."""
    function = getattr(function, "fget", function)
    return Mutant(fault=fault, owner=owner, function=function, old=old, new=new)
