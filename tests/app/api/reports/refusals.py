"""Prints what is served of all that must be refused: `python -O -m tests.app.api.reports.refusals`.

It has no assertion itself, so that it works where Python leaves them out.
"""

import asyncio
import sys

from tests.app.api.answers import BODIES
from tests.app.api.fields import chat_rows, completion_rows
from tests.app.api.server import CHAT, COMPLETIONS, in_process, make_app
from tests.fakes.scripted_engine import FakeEngineClient, Script


async def main() -> int:
    """Return how many were served."""
    if __debug__:
        return 1
    client, num_served = FakeEngineClient([Script([5])]), 0
    cases = [(COMPLETIONS, completion_rows.COMPLETION), (CHAT, chat_rows.CHAT_ROWS)]
    async with in_process(make_app(client)) as http:
        for path, rows in cases:
            for row, wrong in ((each, wrong) for each in rows for wrong in each.wrong()):
                body = BODIES[path](**row.beside, **{row.name: wrong.value})
                answer = await http.post(path, json=body)
                status = 404 if wrong.code.endswith("_not_found") else 400
                if answer.status_code != status or answer.json()["error"]["code"] != wrong.code:
                    num_served += 1
                    shown = f"{row.name}={wrong.value!s:.40}: {answer.text:.200}"
                    sys.stdout.write(f"{path} {shown}\n")
    if client.prompts:
        sys.stdout.write(f"{len(client.prompts)} reached the engine\n")
    return num_served + len(client.prompts)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
