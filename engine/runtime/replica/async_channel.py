"""The replica's end of the channel to its scheduler: callbacks in an asyncio loop, no waiting."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from engine.executor.channel import Channel, ChannelClosed

logger = logging.getLogger(__name__)


class AsyncChannel:
    """Owns one end of a channel; must be made inside the loop that it is used in.

    Attributes:
        heard_s: when the last message came, on the clock of the loop; before one, when it was made.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        on_message: Callable[[bytes], None],
        on_closed: Callable[[], None],
    ) -> None:
        """Begin to receive.

        Args:
            on_message: may fail on what the peer sent, which ends the connection.
            on_closed: called once when the peer is gone, not after `close`.
        """
        self._channel = channel
        self._on_message = on_message
        self._on_closed = on_closed
        self._unsent: deque[bytes] = deque()
        self._start = 0
        self._is_open = True
        self._loop = asyncio.get_running_loop()
        self.heard_s = self._loop.time()
        self._loop.add_reader(channel.fileno(), self._receive)

    def send(self, message: bytes) -> None:
        """Send now if the peer's buffer has room, else as soon as it has; dropped after the end."""
        if not self._is_open:
            return
        self._unsent.append(message)
        if len(self._unsent) == 1:
            self._flush()

    def close(self) -> None:
        """End the connection; unsent messages are dropped."""
        if self._is_open:
            self._is_open = False
            self._unsent.clear()
            self._loop.remove_reader(self._channel.fileno())
            self._loop.remove_writer(self._channel.fileno())
            self._channel.close()

    def _receive(self) -> None:
        try:
            while self._is_open and (message := self._channel.try_recv()) is not None:
                self.heard_s = self._loop.time()
                self._on_message(message)
        except ChannelClosed:
            self._end()
        except Exception:  # process border: a peer that sends nonsense counts as gone
            logger.exception("bad_message")
            self._end()

    def _flush(self) -> None:
        try:
            while self._unsent:
                self._start = self._channel.try_send(self._unsent[0], self._start)
                if self._start < len(self._unsent[0]):
                    self._loop.add_writer(self._channel.fileno(), self._flush)
                    return
                self._unsent.popleft()
                self._start = 0
            self._loop.remove_writer(self._channel.fileno())
        except ChannelClosed:
            self._end()

    def _end(self) -> None:
        # handling a message may have closed the channel before it failed
        if self._is_open:
            self.close()
            self._on_closed()
