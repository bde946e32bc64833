"""A fault put into one function on purpose, and the test that must notice it.

A test suite that passes with the fault in place proves nothing about that line.
"""

import ast
import gc
import inspect
import logging
import signal
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, TypeVar

import pytest

from tests import ROOT

T = TypeVar("T")

# seconds after which a test that hangs because of a fault counts as failed
TEST_TIMEOUT_S = 2
# what a failed test leaves open is no failure of its own; why it fails nobody reads
ARGUMENTS = [
    "--disable-plugin-autoload", "-p", "pytest_asyncio.plugin", "-p", "pytest_timeout",
    "--assert=plain", "-x", "-q", "--no-header", "--tb=no",
    "-p", "no:cacheprovider", "-p", "no:unraisableexception", "-p", "no:threadexception",
    # each takes its milliseconds at every start
    "-p", "no:doctest", "-p", "no:junitxml", "-p", "no:pastebin", "-p", "no:stepwise",
    "-p", "no:setuponly", "-p", "no:setupplan", "-p", "no:legacypath", "-p", "no:unittest",
    "-o", f"timeout={2 * TEST_TIMEOUT_S}",
]  # fmt: skip


class HangingTests:
    """Fails a test that hangs, and again until it ends: asyncio goes on after one error."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Called around each test."""

        def fail(*_: object) -> None:
            pytest.fail(f"{item.name} hangs")

        before = signal.signal(signal.SIGALRM, fail)
        signal.setitimer(signal.ITIMER_REAL, TEST_TIMEOUT_S, 0.25)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One place of one function replaced by a wrong one.

    Attributes:
        what: the rule that is broken, in words.
        function: a function, method or property; decorators are looked through.
        old: text that stands exactly once in the function.
        new: what takes its place.
        noticed_by: name of the test, in the file that mirrors the function's module.
        aspect: where the tests of a module take several files, `test_<module>_<aspect>.py`.
    """

    what: str
    function: Any
    old: str
    new: str
    noticed_by: str
    aspect: str = ""

    def target(self) -> FunctionType:
        """The plain function."""
        function = inspect.unwrap(getattr(self.function, "fget", self.function))
        function = getattr(function, "__func__", function)
        assert isinstance(function, FunctionType)
        return function

    @property
    def test(self) -> str:
        """Path and name of the test that must fail."""
        return f"{mirror_of(self.target().__module__, self.aspect)}::{self.noticed_by}"

    def code(self) -> CodeType:
        """The faulty code.

        Raises:
            AssertionError: if the text no longer stands there once; the fault must be rewritten.
        """
        target = self.target()
        source = textwrap.dedent(inspect.getsource(target))
        assert source.count(self.old) == 1, f"{target} has not exactly one {self.old!r}"
        [definition] = ast.parse(source.replace(self.old, self.new)).body
        assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef)
        definition.decorator_list = []
        scope: dict[str, Any] = {}
        exec(_compile(definition, target), vars(sys.modules[target.__module__]), scope)
        faulty: Callable[..., Any] = scope["make"](*_cells(target))
        assert isinstance(faulty, FunctionType)
        return faulty.__code__


def _compile(definition: ast.FunctionDef | ast.AsyncFunctionDef, target: FunctionType) -> CodeType:
    """Code that defines `make`, which defines the function with the closure of the target."""
    template = f"def make({', '.join(target.__code__.co_freevars)}):\n    return {definition.name}"
    module = ast.parse(template)
    [make] = module.body
    assert isinstance(make, ast.FunctionDef)
    make.body.insert(0, definition)
    return compile(ast.fix_missing_locations(module), "<fault>", "exec")


def _cells(target: FunctionType) -> list[None]:
    return [None] * len(target.__code__.co_freevars)


def mirror_of(module: str, aspect: str = "") -> str:
    """Path of the test module that mirrors a module of the source, or one aspect of it."""
    *packages, name = module.split(".")
    parts = ["test", name, aspect] if aspect else ["test", name]
    return "/".join(["tests", *packages, f"{'_'.join(parts)}.py"])


@contextmanager
def in_place(fault: Fault) -> Iterator[None]:
    """Put a fault into its function, wherever that is referred to, for a while."""
    target = fault.target()
    right = target.__code__
    target.__code__ = fault.code()
    try:
        yield
    finally:
        target.__code__ = right


def every_sixth(faults: Iterable[T], name: Callable[[T], str]) -> list[Any]:
    """Parameters of which every sixth is for each run, the others for where time is no matter."""
    return [
        pytest.param(fault, id=name(fault), marks=[pytest.mark.slow] if index % 6 else [])
        for index, fault in enumerate(faults)
    ]


def is_noticed(fault: Fault) -> bool:
    """Whether the named test fails with the fault in place."""
    with in_place(fault):
        return not do_pass([fault.test])


def do_pass(tests: Iterable[str]) -> bool:
    """Whether tests, as `Fault.test` names them, pass in a session of their own."""
    paths = [str(ROOT / test) for test in tests]
    with _by_itself():
        exit_code = pytest.main([*paths, *ARGUMENTS], plugins=[HangingTests()])
    assert exit_code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), (
        f"{paths} could not be run: {exit_code!r}"
    )
    return exit_code == pytest.ExitCode.OK


@contextmanager
def _by_itself() -> Iterator[None]:
    """Collect in silence what a failed test leaves open: no test that follows must trip over it.

    Neither the log of the test around this one nor the debugger may hold its frames until then.
    """
    handlers, thread_hook = logging.root.handlers, threading.excepthook
    unraisable_hook = sys.unraisablehook
    logging.root.handlers = []
    # a test that hangs is ended wherever it is, in a callback too
    sys.unraisablehook = lambda args: None
    # a thread that fails because of the fault must not fail the test around this one
    threading.excepthook = lambda args: None
    try:
        yield
    finally:
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            vars(sys).pop(name, None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
        logging.root.handlers, threading.excepthook = handlers, thread_hook
        sys.unraisablehook = unraisable_hook
