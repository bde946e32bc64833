"""Prints what is served of all that must be refused: `python -O -m tests.app.api.reports.refusals`.

It has no assertion itself, so that it works where Python leaves them out.
"""

import asyncio
import sys

from tests.app.api.answers import BODIES
from tests.app.api.bad_fields import BOTH, ONLY_CHAT, ONLY_COMPLETIONS
from tests.app.api.server import CHAT, COMPLETIONS, in_process, make_app
from tests.fakes.scripted_engine import FakeEngineClient, Script


async def main() -> int:
    """Return how many were served."""
    if __debug__:
        return 1
    client, num_served = FakeEngineClient([Script([5])]), 0
    cases = [(COMPLETIONS, BOTH + ONLY_COMPLETIONS), (CHAT, BOTH + ONLY_CHAT)]
    async with in_process(make_app(client)) as http:
        for path, fields in cases:
            for field, value, code, _ in fields:
                answer = await http.post(path, json=BODIES[path](**{field: value}))
                if answer.status_code != 400 or answer.json()["error"]["code"] != code:
                    num_served += 1
                    sys.stdout.write(f"{path} {field}={value!s:.40}: {answer.text:.200}\n")
    if client.prompts:
        sys.stdout.write(f"{len(client.prompts)} reached the engine\n")
    return num_served + len(client.prompts)


if __name__ == "__main__":
    sys.exit(min(asyncio.run(main()), 1))
