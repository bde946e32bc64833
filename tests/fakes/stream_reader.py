"""Reads a client's stream in a task of its own."""

import asyncio
from collections.abc import AsyncIterator

from engine.errors import EngineError
from engine.runtime.messages import decode_batch
from engine.types import FinishReason, Refusal, StepOutput


class StreamReader:
    """Reads to the end of a stream or to its error.

    Attributes:
        batches: ids of the requests of each output of each batch.
        rows: (request id, choice, token, finish reason) of all that came.
        refusals: (request id, refusal) of all that came.
        num_bytes: of all batches.
        error: what the stream ended with, if anything.
    """

    def __init__(self, stream: AsyncIterator[bytes]) -> None:
        self.batches: list[list[list[int]]] = []
        self.rows: list[tuple[int, int, int, FinishReason]] = []
        self.refusals: list[tuple[int, Refusal]] = []
        self.num_bytes = 0
        self.error: EngineError | None = None
        self._task = asyncio.create_task(self._read(stream))

    @property
    def has_ended(self) -> bool:
        return self._task.done()

    async def _read(self, stream: AsyncIterator[bytes]) -> None:
        try:
            async for batch in stream:
                self.num_bytes += len(batch)
                outputs = decode_batch(batch)
                self.batches.append([output.request_ids.tolist() for output in outputs])
                for output in outputs:
                    self._note(output)
        except EngineError as error:
            self.error = error

    def _note(self, output: StepOutput) -> None:
        self.refusals += output.refusals
        columns = output.request_ids, output.choices, output.tokens
        reasons = map(FinishReason, output.finish_reasons)
        self.rows += zip(*columns, reasons, strict=True)
