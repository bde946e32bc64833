"""What one ingress is to be told, kept until its stream takes it, for as long as it is there."""

import asyncio
from collections.abc import AsyncIterator, Callable

from engine.errors import EngineError
from engine.runtime.messages import encode_batch


class Mailbox:
    """Messages, open requests and lease of one client. Lives in one asyncio loop.

    The lease is renewed by `renew` while a stream is attached. When it has run out, the stream ends
    with an error and `on_lapsed` is called: a client whose process was killed cannot say goodbye,
    and its stream may look attached for ever.
    """

    def __init__(self, *, lease_s: float, idle_s: float, on_lapsed: Callable[[], None]) -> None:
        """Begin a lease.

        Args:
            lease_s: seconds that the client may be silent.
            idle_s: seconds without an open request after which the stream ends itself.
        """
        self.open_ids: set[int] = set()
        self._lease_s = lease_s
        self._idle_s = idle_s
        self._on_lapsed = on_lapsed
        self._messages: list[bytes] = []
        self._news = asyncio.Event()
        self._stream = 0
        self._is_attached = False
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._heard_s = self._loop.time()
        self._timer = self._loop.call_later(lease_s, self._check_lease)

    def put(self, message: bytes) -> None:
        """Queue an encoded output for the stream."""
        self._messages.append(message)
        self._news.set()

    def opened(self, request_id: int) -> None:
        """Note an accepted request; its client has the lease's time to attach."""
        self.open_ids.add(request_id)
        self._heard_s = self._loop.time()
        self._news.set()

    def renew(self) -> None:
        """Note that the client lives. Without a stream it is no use to it, and ignored."""
        if self._is_attached:
            self._heard_s = self._loop.time()

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield everything that is queued, one batch at a time, until the client has been idle.

        A second stream takes over from the first.

        Raises:
            EngineError: if the lease has run out or the replica closes.
        """
        self._stream += 1
        mine = self._stream
        self._is_attached = True
        self._heard_s = self._loop.time()
        self._news.set()
        try:
            while await self._wait_for_news() and mine == self._stream:
                if self._messages:
                    batch, self._messages = self._messages, []
                    yield encode_batch(batch)
        finally:
            if mine == self._stream:
                self._is_attached = False

    def close(self) -> None:
        """End the stream and the lease; what is queued is dropped."""
        self._is_closed = True
        self._timer.cancel()
        self._news.set()

    async def _wait_for_news(self) -> bool:
        """Wait until there may be a message; False when the client has been idle for long."""
        self._check_open()
        if not self._messages:
            self._news.clear()
        try:
            async with asyncio.timeout(None if self.open_ids else self._idle_s):
                await self._news.wait()
        except TimeoutError:
            return False
        self._check_open()
        return True

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineError("the engine replica has given up this client")

    def _check_lease(self) -> None:
        left_s = self._heard_s + self._lease_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._check_lease)
        else:
            self._on_lapsed()
