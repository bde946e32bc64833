"""A burst of requests that operators can have made, to see what the server does under load."""

import asyncio
import random
from contextlib import suppress

from engine.errors import EngineError, RequestError
from engine.runtime.protocol import EngineClient
from engine.types import SamplingParams, Terms, int32

MAX_REQUESTS = 32
MAX_SECONDS = 20.0
# whose requests they are; longer than no digest of a key
ACCOUNT = b"stress"
_OUTPUT_LENS = (48, 256)


class StressIsOn(Exception):
    """There is one burst at a time."""


class Stress:
    """Sends bursts of random prompts: samples, forks, beams, and prompts that begin alike."""

    def __init__(self, client: EngineClient, *, vocab_size: int, max_model_len: int) -> None:
        """Args: client: takes the requests as those of an account of their own."""
        self._client = client
        self._vocab_size = vocab_size
        self._max_prompt_len = max(2, min(512, max_model_len // 4))
        self._max_output_len = max(1, max_model_len // 4)
        self._burst: asyncio.Task[None] | None = None

    @property
    def is_on(self) -> bool:
        """Whether a burst is open."""
        return self._burst is not None and not self._burst.done()

    def start(self, num_requests: int, seconds: float) -> None:
        """Begin a burst.

        Args:
            num_requests: at most `MAX_REQUESTS`.
            seconds: after which what is left of it is aborted, at most `MAX_SECONDS`.

        Raises:
            StressIsOn: if one is open.
        """
        if self.is_on:
            raise StressIsOn
        self._burst = asyncio.create_task(self._run(num_requests, seconds))

    async def stop(self) -> None:
        """End the burst now; what is open of it is aborted."""
        if self._burst is not None:
            self._burst.cancel()
            await asyncio.wait({self._burst})

    async def _run(self, num_requests: int, seconds: float) -> None:
        rng = random.Random()
        prefix = self._tokens(rng, self._max_prompt_len // 2)
        works = [self._ask(rng, prefix, number) for number in range(num_requests)]
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*works)

    async def _ask(self, rng: random.Random, prefix: list[int], number: int) -> None:
        prompt = self._tokens(rng, rng.randint(1, self._max_prompt_len // 2))
        # every third begins like the others, every fourth forks, every eighth searches
        prompt = prefix + prompt if number % 3 == 0 else prompt
        width = 4 if number % 4 == 1 else 1
        sampling = SamplingParams(
            max_tokens=min(rng.randint(*_OUTPUT_LENS), self._max_output_len),
            ignore_eos=True,
            seed=rng.getrandbits(63),
            n=width,
            beam_width=4 if number % 8 == 1 else 0,
        )
        with suppress(EngineError, RequestError):
            stream = await self._client.submit(
                int32(prompt), sampling, salt=ACCOUNT, terms=Terms(account=ACCOUNT)
            )
            try:
                async for _ in stream:
                    pass
            finally:
                await stream.abort()

    def _tokens(self, rng: random.Random, count: int) -> list[int]:
        return rng.choices(range(self._vocab_size), k=count)
