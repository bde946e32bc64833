"""Keeps work that grows with a request off the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

# characters, token ids or numbers beyond which work takes much longer than handing it to a thread
MAX_INLINE = 4096
# work in Python keeps the event loop waiting for up to 5 ms for each of them: sys.setswitchinterval
NUM_THREADS = 2

ResultT = TypeVar("ResultT")


class Offload:
    """Few threads for long work; short work is done at once.

    Only for work that is pure Python, gives the interpreter lock back, or is made of C calls that
    take a few milliseconds each: no thread helps the event loop against one long C call.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="text")
        self._done_inline = 0

    async def run(self, size: int, work: Callable[[], ResultT]) -> ResultT:
        """Do some work; after much short work the event loop has its turn first.

        Args:
            size: about how much work it is, in characters, token ids or numbers of an answer.
        """
        if size > MAX_INLINE:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        self._done_inline += size
        if self._done_inline > MAX_INLINE:
            self._done_inline = 0
            await asyncio.sleep(0)
        return work()
