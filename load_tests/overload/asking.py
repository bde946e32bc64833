"""Sends completions of one API key, and notes when what came of each."""

import asyncio
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import aiohttp

REFUSED = 429
# a connection of a closed loop comes back after so long when it was refused
PAUSE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked, again and again.

    Attributes:
        url: of the server, without /v1.
        key: API key.
        vocab_size: token ids of prompts are below it.
        prompt_len, output_len: tokens.
    """

    url: str
    key: str
    vocab_size: int
    prompt_len: int
    output_len: int


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of one request; times in seconds on `time.perf_counter`.

    Attributes:
        is_again: whether it was refused before.
        status: of HTTP; 0 if the connection failed.
        first_s: when the first token came; None if none did.
        num_tokens: tokens that came.
        is_whole: whether the answer came to its end.
    """

    key: str
    sent_s: float
    is_again: bool = False
    status: int = 0
    first_s: float | None = None
    end_s: float = 0.0
    num_tokens: int = 0
    is_whole: bool = False


def open_session(silence_s: float) -> aiohttp.ClientSession:
    """Make a session without a limit on connections.

    Args:
        silence_s: after which a request whose server says nothing has failed: nothing here waits
            for a server that has forgotten it.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_read=silence_s),
    )


async def ask(session: aiohttp.ClientSession, question: Question, seed: int) -> Outcome:
    """Send one request and read its answer to the end."""
    rng = random.Random(seed)
    prompt = [rng.randrange(3, question.vocab_size) for _ in range(question.prompt_len)]
    body = {
        "prompt": prompt, "max_tokens": question.output_len, "ignore_eos": True, "stream": True,
        "temperature": 0, "return_token_ids": True,
    }  # fmt: skip
    headers = {"Authorization": f"Bearer {question.key}"}
    outcome = Outcome(key=question.key, sent_s=time.perf_counter())
    try:
        url = f"{question.url}/v1/completions"
        async with session.post(url, json=body, headers=headers) as response:
            outcome.status = response.status
            if response.status == 200:
                await _read(response.content, outcome)
            else:
                await response.read()
    except (TimeoutError, aiohttp.ClientError, OSError):
        pass
    outcome.end_s = time.perf_counter()
    return outcome


async def _read(content: aiohttp.StreamReader, outcome: Outcome) -> None:
    async for line in content:
        data = line.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            outcome.is_whole = True
        elif data and not data.startswith(b":"):
            count = sum(len(each.get("token_ids") or ()) for each in json.loads(data)["choices"])
            if count and outcome.first_s is None:
                outcome.first_s = time.perf_counter()
            outcome.num_tokens += count


async def closed_loop(
    session: aiohttp.ClientSession, questions: list[Question], concurrency: int, duration_s: float
) -> list[Outcome]:
    """Keep so many requests open for a time, each connection those of one question."""
    end_s = time.perf_counter() + duration_s
    outcomes: list[Outcome] = []
    seeds = iter(range(1_000_000, 2_000_000))

    async def one_after_the_other(question: Question) -> None:
        while time.perf_counter() < end_s:
            outcomes.append(await ask(session, question, next(seeds)))
            if not outcomes[-1].is_whole:
                await asyncio.sleep(PAUSE_S)

    asked = (questions[number % len(questions)] for number in range(concurrency))
    await asyncio.gather(*map(one_after_the_other, asked))
    return outcomes


async def open_loop(
    session: aiohttp.ClientSession,
    questions: list[Question],
    rate_per_s: float,
    duration_s: float,
    *,
    num_retries: int = 0,
) -> list[Outcome]:
    """Send requests at random times, whatever becomes of them, as many for each question.

    Args:
        num_retries: times that one which is refused is sent again, at once.

    Returns:
        One outcome for each time that a request was sent.
    """
    start_s = time.perf_counter()
    tasks = []
    for number, due_s in enumerate(_arrivals(rate_per_s, duration_s)):
        await asyncio.sleep(max(0.0, start_s + due_s - time.perf_counter()))
        question = questions[number % len(questions)]
        tasks.append(asyncio.create_task(_insist(session, question, number, num_retries)))
    return [outcome for sent in await asyncio.gather(*tasks) for outcome in sent]


async def _insist(
    session: aiohttp.ClientSession, question: Question, seed: int, num_retries: int
) -> list[Outcome]:
    """Ask, and again while it is refused."""
    outcomes = [await ask(session, question, seed)]
    while outcomes[-1].status == REFUSED and len(outcomes) <= num_retries:
        again = await ask(session, question, seed)
        again.is_again = True
        outcomes.append(again)
    return outcomes


def _arrivals(rate_per_s: float, duration_s: float) -> Iterator[float]:
    rng, due_s = random.Random(0), 0.0
    while (due_s := due_s + rng.expovariate(rate_per_s)) < duration_s:
        yield due_s
