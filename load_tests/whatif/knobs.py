"""What a tornado turns: each option down and up, all others as they are."""

from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.config import EngineConfig
from load_tests.whatif.settings import Changes

# knobs that are no option of the application
REPLICAS, RATE = "replicas", "rate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One option and the two values that it is set to.

    Attributes:
        name: of the option, or `REPLICAS` or `RATE` (a factor).
        low, high: as YAML.
        is_given: whether the user asked for it: then its values must be good.
    """

    name: str
    low: str
    high: str
    is_given: bool = False

    @property
    def values(self) -> tuple[str, str]:
        """Low and high."""
        return self.low, self.high

    def changes(self, value: str, config: EngineConfig) -> Changes:
        """Options that are set; the memory stays the same when blocks change their size."""
        if self.name in (REPLICAS, RATE):
            return {}
        if self.name == "block_size" and not self.is_given:
            num_blocks = config.num_blocks * config.block_size // int(value)
            return {"block_size": value, "num_blocks": str(num_blocks)}
        return {self.name: value}


def parse_knob(text: str) -> Knob:
    """Read `NAME=LOW:HIGH`.

    Raises:
        ArgumentTypeError: if it is something else.
    """
    name, _, values = text.partition("=")
    low, colon, high = values.partition(":")
    if not (name and low and colon and high):
        raise ArgumentTypeError(f"{text!r} is not NAME=LOW:HIGH")
    for value in (low, high):
        if name in (REPLICAS, RATE) and not _is_positive(value, int if name == REPLICAS else float):
            raise ArgumentTypeError(f"{name} is {value!r}, not a number above 0")
    return Knob(name=name, low=low, high=high, is_given=True)


def default_knobs(config: EngineConfig, num_replicas: int) -> Sequence[Knob]:
    """What mostly matters, around the settings at hand."""
    knobs = [
        Knob(name=RATE, low="0.8", high="1.2"),
        Knob(name=REPLICAS, low=str(max(1, num_replicas - 1)), high=str(num_replicas + 1)),
        _halved("num_blocks", config.num_blocks),
        _halved("block_size", config.block_size, most=256),
        _halved("max_num_seqs", config.max_num_seqs, most=config.scheduler.max_num_batched_tokens),
        _halved(
            "max_num_batched_tokens",
            config.scheduler.max_num_batched_tokens,
            least=config.max_num_seqs,
        ),
        Knob(name="prompt_share", low="0.25", high="1.0"),
        Knob(name="watermark", low="0.0", high="0.05"),
        Knob(name="growth_blocks", low="0.0", high="2.0"),
        Knob(name="max_overtakes", low="0", high="8"),
        Knob(name="prefix_cache", low="false", high="true"),
    ]
    if config.swap_bytes:
        knobs.append(Knob(name="preemption", low="recompute", high="swap"))
    return tuple(knobs)


def _halved(name: str, value: int, *, least: int = 1, most: int = 1 << 30) -> Knob:
    return Knob(name=name, low=str(max(least, value // 2)), high=str(min(most, 2 * value)))


def _is_positive(text: str, number: Callable[[str], float]) -> bool:
    try:
        return 0 < number(text) < float("inf")
    except ValueError:
        return False
