"""Makes grammars of what requests say, in a process of its own that hostile ones may kill."""

import asyncio
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from app.grammars.grammar_spec import GrammarSpec
from app.grammars.pipe import read_message, write_message
from app.limits import MAX_GRAMMAR_LEN, MAX_GRAMMAR_S
from engine.errors import InvalidRequest, Overloaded

# grammars, and refusals, that are remembered
_MAX_CACHED = 256
# grammars that have not been compiled yet; most take milliseconds, hostile ones two seconds
_MAX_WAITING = 64
_MAX_ERROR_LEN = 300
_FIRST = {"kind": "regex", "content": "a", "whitespace": None, "is_closed": False}
# until a process has read a tokenizer
_START_S = 60.0


class GrammarCompiler:
    """Compiles grammars one after the other; the event loop goes on meanwhile.

    Its process is started by the first grammar, and ends with this object or with its process.
    """

    def __init__(self, tokenizer: Callable[[], str], end_ids: Sequence[int]) -> None:
        """Start nothing yet.

        Args:
            tokenizer: makes the content of tokenizer.json.
            end_ids: ids that end an answer.
        """
        self._settings = tokenizer, list(end_ids)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammars")
        self._checker: _Checker | None = None
        self._num_waiting = 0
        self._cache: OrderedDict[GrammarSpec, dict[str, str]] = OrderedDict()

    async def compile(self, spec: GrammarSpec) -> str:
        """Return the grammar for the workers.

        Raises:
            InvalidRequest: naming the field, if nothing can match it, it asks for what is not
                supported, or it takes too much time or memory.
            Overloaded: if many others wait.
        """
        if len(spec.content) + len(spec.whitespace or "") > MAX_GRAMMAR_LEN:
            raise _refused(spec, f"it may have at most {MAX_GRAMMAR_LEN} characters")
        if not self._settings[1]:
            raise _refused(spec, "this model has no token that ends an answer")
        if spec not in self._cache:
            self._cache[spec] = await self._in_turn(spec)
            if len(self._cache) > _MAX_CACHED:
                self._cache.popitem(last=False)
        answer = self._cache[spec]
        self._cache.move_to_end(spec)
        if "error" in answer:
            raise _refused(spec, answer["error"][:_MAX_ERROR_LEN])
        return answer["grammar"]

    async def _in_turn(self, spec: GrammarSpec) -> dict[str, str]:
        if self._num_waiting == _MAX_WAITING:
            message = f"{_MAX_WAITING} grammars wait to be compiled"
            raise Overloaded(message, retry_after_s=_MAX_WAITING * MAX_GRAMMAR_S / 4)
        self._num_waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, partial(self._check, spec))
        finally:
            self._num_waiting -= 1

    def close(self) -> None:
        """End the process."""
        self._thread.shutdown()
        if self._checker is not None:
            self._checker.close()

    def _check(self, spec: GrammarSpec) -> dict[str, str]:
        if self._checker is None:
            make_tokenizer, end_ids = self._settings
            self._checker = _Checker({"tokenizer": make_tokenizer(), "end_ids": end_ids})
        parts = {
            "kind": spec.kind,
            "content": spec.content,
            "whitespace": spec.whitespace,
            "is_closed": spec.is_closed,
        }
        answer = self._checker.ask(parts)
        if answer is None:
            # it may have left anything behind
            self._checker.close()
            self._checker = None
            return {"error": "it takes too much time or memory"}
        return answer


class _Checker:
    """The other end of `app.grammars.checker`; for one thread."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "app.grammars.checker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # where `app` is found
            cwd=Path(__file__).parents[2],
        )
        self.close = weakref.finalize(self, _end, self._process)
        write_message(self._stdin, settings)
        # the first answer comes when the process is ready
        self._answer(_FIRST, _START_S)

    @property
    def _stdin(self) -> BinaryIO:
        return cast("BinaryIO", self._process.stdin)

    def ask(self, parts: dict[str, Any]) -> dict[str, str] | None:
        """Return the answer, or None if the process dies of the question."""
        return self._answer(parts, MAX_GRAMMAR_S)

    def _answer(self, parts: dict[str, Any], timeout_s: float) -> dict[str, str] | None:
        watchdog = threading.Timer(timeout_s, self._process.kill)
        watchdog.start()
        try:
            write_message(self._stdin, parts)
            return read_message(cast("BinaryIO", self._process.stdout))
        except OSError:
            return None
        finally:
            watchdog.cancel()
            watchdog.join()


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    # closes its pipes and waits for its end
    process.communicate()


def _refused(spec: GrammarSpec, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{spec.field}: {reason}", param=spec.field)
