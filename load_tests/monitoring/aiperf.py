"""aiperf (https://pypi.org/project/aiperf), a generator of load that others have written."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load_tests.monitoring.comparison import Means

_REPORT = "profile_export_aiperf.json"
_LIMIT_S = 900.0
# lines of its output that an error shows
_LAST_LINES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AiperfLoad:
    """Streamed completions, a fixed number of them open at once, all of one length.

    Attributes:
        program: aiperf's, as `make test-clients` installs it.
        model: name that the server gives its model.
        tokenizer: folder of that model, with which prompts are made.
    """

    program: Path
    url: str
    model: str
    tokenizer: Path
    concurrency: int
    num_requests: int
    prompt_len: int
    output_len: int

    def command(self, artifacts: Path) -> list[str]:
        """The command line that runs it and leaves its report in a folder."""
        options = {
            "--model": self.model,
            "--url": self.url,
            "--endpoint-type": "completions",
            "--tokenizer": self.tokenizer,
            "--concurrency": self.concurrency,
            "--request-count": self.num_requests,
            "--isl": self.prompt_len,
            "--isl-stddev": 0,
            "--osl": self.output_len,
            "--osl-stddev": 0,
            "--extra-inputs": "ignore_eos:true",
            "--artifact-dir": artifacts,
            "--ui": "none",
        }
        words = [str(word) for option in options.items() for word in option]
        return [str(self.program), "profile", "--streaming", "--use-server-token-count", *words]

    def run(self, folder: Path) -> Means:
        """Send the load; the folder gets its report, and is its home.

        Raises:
            ValueError: if it ended with an error, or a request failed.
        """
        folder.mkdir(parents=True, exist_ok=True)
        environment = {
            "HOME": str(folder),
            "PATH": f"{self.program.parent}:{os.defpath}",
            "NO_PROXY": "*",
        }
        done = subprocess.run(
            self.command(folder), env=environment, cwd=folder, capture_output=True, text=True,
            timeout=_LIMIT_S, check=False,
        )  # fmt: skip
        if done.returncode:
            lines = (done.stdout + done.stderr).splitlines()[-_LAST_LINES:]
            raise ValueError("\n".join(["aiperf ended with an error:", *lines]))
        return means_of(json.loads((folder / _REPORT).read_text(encoding="utf-8")))


def means_of(found: dict[str, Any]) -> Means:
    """Read aiperf's report.

    Raises:
        ValueError: if a request failed.
    """
    if errors := found.get("error_summary"):
        raise ValueError(f"requests of aiperf failed: {errors}")

    def mean(name: str) -> float:
        return float(found[name]["avg"])

    return Means(
        first_s=mean("time_to_first_token") / 1e3,
        gap_s=mean("inter_token_latency") / 1e3,
        whole_s=mean("request_latency") / 1e3,
        num_tokens=mean("total_output_tokens"),
        load_s=mean("benchmark_duration"),
    )
