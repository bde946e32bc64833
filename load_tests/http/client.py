"""One completion over HTTP: exact prompt ids in, arrival times of tokens out."""

import json
import time
from array import array
from dataclasses import dataclass, field

import aiohttp

from load_tests.traffic.latencies import Served
from load_tests.traffic.schedule import TimedRequest

# seconds to wait for a connection; `Driver` limits how long an answer may take
CONNECT_TIMEOUT_S = 30.0
UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What happened to one request; every time is in seconds after the start of the run.

    Attributes:
        request: when it was due and its lengths.
        sent_s: when the client began to send it.
        chunk_s: float64 arrival of each chunk that brought tokens.
        chunk_tokens: int32 tokens in each of them.
        error: a short kind, or None if all tokens came.
    """

    request: TimedRequest
    sent_s: float
    chunk_s: "array[float]" = field(default_factory=lambda: array("d"))
    chunk_tokens: "array[int]" = field(default_factory=lambda: array("i"))
    error: str | None = None

    @property
    def num_tokens(self) -> int:
        """Output tokens that arrived."""
        return sum(self.chunk_tokens)

    @property
    def served(self) -> Served:
        """When its first and last token arrived; for one without error."""
        return Served(
            request=self.request, first_token_s=self.chunk_s[0], finish_s=self.chunk_s[-1]
        )


class StreamError(Exception):
    """The server ended a request by an error; the text is the kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server under test.

    Attributes:
        url: base without /v1.
        model: name to ask for.
        api_key: sent as a bearer token when not empty.
        stream: whether tokens are to come as they are made, or all at the end.
    """

    url: str
    model: str
    api_key: str = ""
    stream: bool = True

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries beside its body."""
        key = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return {"Content-Type": "application/json"} | key

    def body(self, prompt: list[int], output_len: int) -> bytes:
        """Encode a completion of exactly `output_len` greedy tokens with running token counts."""
        body: dict[str, object] = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": output_len,
            "ignore_eos": True,
            "temperature": 0,
        }
        if self.stream:
            options = {"include_usage": True, "continuous_usage_stats": True}
            body |= {"stream": True, "stream_options": options}
        return json.dumps(body).encode()


def open_session() -> aiohttp.ClientSession:
    """Make a session without a limit on connections: no request waits inside the client."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
    )


async def first_model(session: aiohttp.ClientSession, target: Target) -> str:
    """Ask the server which model it serves.

    Raises:
        aiohttp.ClientError: if it does not answer or lists none.
    """
    url, headers = f"{target.url}/v1/models", target.headers
    async with session.get(url, headers=headers, raise_for_status=True) as response:
        models = (await response.json())["data"]
    if not models:
        raise aiohttp.ClientError(f"{url} lists no model")
    return str(models[0]["id"])


class Exchange:
    """One request under way; `record` may be taken at any moment, also after it was cancelled."""

    def __init__(self, request: TimedRequest, started_s: float) -> None:
        self._request = request
        self._started_s = started_s
        self._sent_s: float | None = None
        self._events: list[tuple[float, bytes]] = []
        self._error: str | None = UNFINISHED

    async def run(self, session: aiohttp.ClientSession, target: Target, body: bytes) -> None:
        """Send and read to the end; errors of server and network become the record's error."""
        self._sent_s = self._now_s()
        try:
            await self._exchange(session, target, body)
            self._error = None
        except StreamError as error:
            self._error = str(error)
        except aiohttp.ClientConnectorError:
            self._error = "cannot_connect"
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self._error = f"broken_connection_{type(error).__name__}"

    def record(self) -> Record:
        """Decode what arrived; done after the request, so that decoding delays no other request."""
        chunk_s, chunk_tokens = array("d"), array("i")
        error, num_tokens = self._error, 0
        for at_s, data in self._events:
            event = _decode(data)
            if event.get("error"):
                error = str(event["error"]) if event is _BROKEN else "error_in_stream"
            grown = count_tokens(event, num_tokens)
            if grown > num_tokens:
                chunk_s.append(at_s)
                chunk_tokens.append(grown - num_tokens)
                num_tokens = grown
        if error is None and num_tokens != self._request.output_len:
            error = "wrong_length"
        return Record(
            request=self._request,
            sent_s=self._now_s() if self._sent_s is None else self._sent_s,
            chunk_s=chunk_s,
            chunk_tokens=chunk_tokens,
            error=error,
        )

    def _now_s(self) -> float:
        return time.perf_counter() - self._started_s

    async def _exchange(self, session: aiohttp.ClientSession, target: Target, body: bytes) -> None:
        url = f"{target.url}/v1/completions"
        async with session.post(url, data=body, headers=target.headers) as response:
            if response.status != 200:
                raise StreamError(f"http_{response.status}")
            if target.stream:
                await self._read_events(response.content)
            else:
                data = await response.read()
                self._events.append((self._now_s(), data))

    async def _read_events(self, content: aiohttp.StreamReader) -> None:
        rest, is_done = b"", False
        async for piece in content.iter_any():
            now_s = self._now_s()
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    data = line[5:].strip()
                    is_done = is_done or data == b"[DONE]"
                    if data != b"[DONE]":
                        self._events.append((now_s, data))
        if not is_done:
            raise StreamError("ended_early")


_BROKEN: dict[str, object] = {"error": "not_json"}


def _decode(data: bytes) -> dict[str, object]:
    try:
        event = json.loads(data)
    except ValueError:
        return _BROKEN
    return event if isinstance(event, dict) else _BROKEN


def count_tokens(event: dict[str, object], so_far: int) -> int:
    """Count the output tokens of a stream up to and including one event.

    The running usage is exact; without it token ids are counted, and without those each chunk with
    text is taken for one token, so that a server which merges tokens unseen is found by the total.

    Args:
        event: a decoded chunk of /v1/completions.
        so_far: tokens before it.
    """
    usage = event.get("usage")
    if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
        return int(usage["completion_tokens"])
    choices = event.get("choices")
    if not isinstance(choices, list) or not choices:
        return so_far
    token_ids = choices[0].get("token_ids")
    return so_far + (len(token_ids) if token_ids is not None else bool(choices[0].get("text")))
