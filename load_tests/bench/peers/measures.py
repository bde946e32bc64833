"""What a system is asked to do.

Standard library only: the peer's environment may lack the rest.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """The same settings for every system; 0 leaves a value to the system's own default.

    Attributes:
        model: folder with config.json; weights are random.
        num_blocks: of the KV pool.
        max_num_batched_tokens: token budget of one step.
        tensor_parallel_size: cards that share the model.
        inter_token_latency_s: what a step should take at most beside prompts; 0 for no target, and
            for systems that know none.
    """

    model: str
    dtype: str
    device: str
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    tensor_parallel_size: int = 1
    inter_token_latency_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Offline:
    """All requests of a trace at once; see `load_tests.traffic.lognormal`."""

    trace: str
    num_requests: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """The time of a step: of equal requests with answers of 2 x `output_len`, less of `output_len`.

    Less of one token would count steps as decodes that prefill the last prompts beside the first
    answers, and those in which only the last answers are left.

    Attributes:
        output_len: steps to average.
        num_schemas: JSON schemas that bind the rows in turns; 0 for none.
    """

    batch: int
    input_len: int
    output_len: int
    seed: int
    num_schemas: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """Equal prompts that are all searched at once."""

    width: int
    num_prompts: int
    input_len: int
    output_len: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Online:
    """Poisson arrivals of a trace: of `load_tests.traffic.lognormal`, or one of its `sources`."""

    trace: str
    rate_per_s: float
    duration_s: float
    seed: int


Measure = Offline | Decode | Beam | Online
_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (Offline, Decode, Beam, Online)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Everything one process does, in this order."""

    knobs: Knobs
    measures: tuple[Measure, ...]

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        measures = [{"kind": type(m).__name__, **asdict(m)} for m in self.measures]
        path.write_text(json.dumps({"knobs": asdict(self.knobs), "measures": measures}))

    @classmethod
    def read(cls, path: Path) -> "Order":
        """Read what `write` wrote."""
        content = json.loads(path.read_text())
        measures = tuple(_KINDS[fields.pop("kind")](**fields) for fields in content["measures"])
        return cls(knobs=Knobs(**content["knobs"]), measures=measures)
