"""Writes the page for those who come from vLLM, docs/from-vllm.md: see `make docs`."""

import sys

from app.command.tools.from_vllm import FIXED, OTHERWISE, SAME

_HEAD = """# From vLLM

Generated from the code by `make docs`; do not edit it by hand.

```
pagoda config from-vllm vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 16384 -tp 2
```

prints a Serve configuration for the flags of `vllm serve`, and says of each that has no place here
what to do. Requests need no change: both speak OpenAI's API. `metrics: {aliases: [vllm]}` has the
metrics under vLLM's names, too ([observability](observability.md#metrics)).

| flag of `vllm serve` | here |
|---|---|"""

_TAIL = """
`--host` and `--port` are the same flags of `pagoda serve`. Where vLLM answers 503 to a full queue,
we answer 429 with `retry-after`."""


def reference() -> str:
    """The whole page, in Markdown."""
    rows = [(f"`--{flag}`", f"`{option}`") for flag, option in SAME.items()]
    rows += [(f"`--{flag}`", f"`{name}: {_yaml(value)}`") for flag, (name, value) in FIXED.items()]
    rows += [(f"`--{flag}`", text) for flag, text in OTHERWISE.items()]
    return "\n".join([_HEAD, *(f"| {flag} | {text} |" for flag, text in rows), _TAIL, ""])


def _yaml(value: object) -> str:
    return str(value).lower()


if __name__ == "__main__":
    sys.stdout.write(reference())
