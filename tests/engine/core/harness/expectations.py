"""What a request must get: a function of its prompt and the model, whatever else is in the batch.

However its prefill is cut, its blocks are shared and however often it is preempted.
"""

from dataclasses import dataclass, field
from functools import reduce

from engine.config import SchedulerConfig
from engine.core.decoding.beam_search import BeamSearch
from engine.core.scheduling.preemption import FixedPreemption, Preemption
from engine.types import Capacity, FinishReason, IntColumn, Request, SamplingParams
from tests.fakes.symbolic_executor import EMPTY_PREFIX, SymbolicModel, extend_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What an engine is built from."""

    capacity: Capacity
    config: SchedulerConfig
    model: SymbolicModel = field(default_factory=SymbolicModel)
    run_ahead: int = 1
    preemption: Preemption = field(default_factory=lambda: FixedPreemption(swap=False))
    prefix_cache: bool = True

    @property
    def pinned_blocks(self) -> int:
        """Blocks that pinned prefixes may hold."""
        return int(self.capacity.num_blocks * self.config.pinned_prefix_share)


@dataclass(slots=True)
class Answer:
    """Tokens of one choice, and why they ended."""

    tokens: list[int] = field(default_factory=list)
    reason: FinishReason = FinishReason.NONE


class FlakyModel(SymbolicModel):
    """A model for which one prefix in `error_every` is an error."""

    def __init__(self, vocab_size: int, error_every: int) -> None:
        super().__init__(vocab_size)
        self._error_every = error_every

    def sample(self, prefix_hash: int, seed: int) -> int:
        if (prefix_hash >> 20) % self._error_every == 0:
            return -1
        return super().sample(prefix_hash, seed)


def predict(setting: Setting, request: Request) -> list[Answer]:
    """The answers, one per choice, of a request that runs by itself and is never aborted."""
    sampling = request.sampling
    if request.pin is not None:
        is_error = setting.model.sample(hash_prefix(request.prompt), sampling.seed) < 0
        return [Answer([], FinishReason.ERROR if is_error else FinishReason.LENGTH)]
    if sampling.beam_width:
        return _search(setting, request)
    return [_sample(setting, request, choice) for choice in range(sampling.n)]


def hash_prefix(tokens: IntColumn) -> int:
    """Hash of a whole prefix."""
    return reduce(extend_hash, tokens, EMPTY_PREFIX)


def can_ever_fit(setting: Setting, prompt_len: int, sampling: SamplingParams) -> bool:
    """Whether a request leaves room for a token and can never outgrow rows or pool."""
    capacity = setting.capacity
    room = setting.config.max_model_len - prompt_len
    num_sequences = max(sampling.n, sampling.beam_width)
    if room < 1 or num_sequences > capacity.num_rows:
        return False
    size, last = capacity.block_size, prompt_len + min(sampling.max_tokens, room) - 2
    blocks = {
        # only full blocks of the prompt are never written by a sequence of its own
        (index, -1 if (index + 1) * size <= prompt_len else sequence)
        for index in range(last // size + 1)
        for sequence in range(num_sequences)
    }
    if len(blocks) <= capacity.num_whole_blocks - setting.pinned_blocks:
        return True
    if num_sequences > 1 or not any(capacity.windows):
        return False
    # a group with a window gives back what no token sees any more while the prompt is computed
    chunk = setting.config.max_step_tokens
    held = [
        min(len(blocks), -(-(window + chunk) // size) + 1) if window else len(blocks)
        for window in capacity.windows
    ]
    return sum(held) <= capacity.num_whole_blocks * len(capacity.windows)


def _sample(setting: Setting, request: Request, choice: int) -> Answer:
    limit = _limit(setting, request)
    stop_ids = _stop_ids(setting, request)
    prefix = hash_prefix(request.prompt)
    tokens: list[int] = []
    while True:
        token = setting.model.sample(prefix, request.sampling.seed + choice)
        if token < 0:
            return Answer(tokens, FinishReason.ERROR)
        tokens.append(token)
        if token in stop_ids:
            return Answer(tokens, FinishReason.STOP)
        if len(tokens) == limit:
            return Answer(tokens, FinishReason.LENGTH)
        prefix = extend_hash(prefix, token)


def _search(setting: Setting, request: Request) -> list[Answer]:
    sampling = request.sampling
    beam = BeamSearch(
        width=sampling.beam_width,
        max_tokens=_limit(setting, request),
        stop_ids=_stop_ids(setting, request),
        length_penalty=sampling.length_penalty,
        early_stopping=sampling.early_stopping,
    )
    prefixes = {0: hash_prefix(request.prompt)}
    while not beam.is_done:
        for index, prefix in prefixes.items():
            if setting.model.sample(prefix, sampling.seed + index) < 0:
                return [Answer([], FinishReason.ERROR) for _ in range(sampling.n)]
            beam.offer(index, setting.model.candidates(prefix, beam.num_candidates))
        children = beam.advance()
        prefixes = {
            index: extend_hash(prefixes[child.parent], child.token)
            for index, child in children.items()
        }
    answers = [
        Answer(list(found.tokens), FinishReason.STOP if found.is_stopped else FinishReason.LENGTH)
        for found in beam.finished[: sampling.n]
    ]
    return answers + [Answer([], FinishReason.STOP)] * (sampling.n - len(answers))


def _limit(setting: Setting, request: Request) -> int:
    return min(request.sampling.max_tokens, setting.config.max_model_len - len(request.prompt))


def _stop_ids(setting: Setting, request: Request) -> frozenset[int]:
    eos = () if request.sampling.ignore_eos else setting.config.eos_token_ids
    return frozenset(request.sampling.stop_token_ids).union(eos)
