"""Chooses one token per sampled row, and looks up log-probabilities of prompts."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from engine.integers import div_ceil
from engine.types import NONE_ALLOWED
from engine.worker.batch import HostBatch
from engine.worker.report import PendingStep
from engine.worker.row_table import RowTable
from engine.worker.sampling.grammars import NextMasks
from engine.worker.sampling.logit_rules import Context, LogitRules
from engine.worker.sampling.token_masks import WORD_BITS
from engine.worker.spans import NextTokens
from engine.worker.staging import Int32Array, stage
from kernels.backend import KernelBackend
from kernels.batch import Sampled, SamplingColumns
from kernels.sampling import BROKEN, most_likely, take_rows

Indices = NDArray[np.int64]


def sample_batch(
    backend: KernelBackend,
    logits: Tensor,
    batch: HostBatch,
    table: RowTable,
    pending: PendingStep,
) -> None:
    """Choose what follows a batch, look up the scores of its prompts, and add both to a step.

    Args:
        logits: [S + P, vocab_size] of the sampled rows, then of the prompt tokens.
    """
    rows, prompt_rows = batch.sampled.rows, batch.prompt.rows
    if len(rows):
        sampled = choose(backend, logits[: len(rows)], batch.sampled, table)
        (device_rows,) = stage(table.runtime, rows)
        table.keep_sampled(device_rows, sampled.tokens)
        pending.add(sampled, rows, table.parameters.num_logprobs[rows])
    if len(prompt_rows):
        known = look_up(backend, logits[len(rows) :], batch.prompt, table)
        pending.add(known, prompt_rows, table.parameters.num_prompt_logprobs[prompt_rows])


def choose(backend: KernelBackend, logits: Tensor, sampled: NextTokens, table: RowTable) -> Sampled:
    """Choose a token for each row of logits [S, vocab_size].

    A draw is fixed by the row's seed and the position of its token: neither the batch nor a
    preemption changes it. Log-probabilities are those of the raw distribution, but the alternatives
    of a beam are ranked as its rules have it. A row whose logits are no numbers gets `BROKEN`, one
    whose rules leave nothing to choose `NONE_ALLOWED`.
    """
    chosen = _choose(backend, logits, sampled, table)
    listing = np.flatnonzero(table.parameters.is_listing[sampled.rows])
    return _with_listed(chosen, logits, listing, sampled, table) if len(listing) else chosen


def _choose(
    backend: KernelBackend, logits: Tensor, sampled: NextTokens, table: RowTable
) -> Sampled:
    """As `choose`; rows that list ids of their own get no alternatives."""
    columns = _columns(sampled, table)
    ruled = np.flatnonzero(table.is_ruled(sampled.rows))
    if not len(ruled):
        return backend.sample(logits, columns)
    is_search = table.parameters.is_search[sampled.rows[ruled]]
    drawing, searching = ruled[~is_search], ruled[is_search]
    tokens = backend.sample(logits, replace(columns, num_logprobs=-1)).tokens
    if len(drawing):
        where, drawn = _draw_by_rules(backend, logits, drawing, columns, sampled, table)
        # what is ruled out may hide that the raw logits are no numbers
        tokens[where] = drawn.masked_fill(tokens[where] == BROKEN, BROKEN)
    if columns.num_logprobs < 0:
        return Sampled(tokens=tokens)
    chosen = backend.report_logprobs(tokens, logits, columns.num_logprobs)
    if len(searching):
        _rank_by_rules(backend, chosen, logits, searching, sampled, table)
    return chosen


def _with_listed(
    chosen: Sampled, logits: Tensor, listing: Indices, sampled: NextTokens, table: RowTable
) -> Sampled:
    """Put the ids that some of the sampled rows list in the place of their alternatives."""
    listed = [table.parameters.listed_ids[row] for row in sampled.rows[listing]]
    width = max(map(len, listed))
    ids = np.zeros((len(listed), width), np.int64)
    for place, own in enumerate(listed):
        ids[place, : len(own)] = own
    where, flat = stage(table.runtime, listing, ids.reshape(-1))
    wanted = flat.view(len(listed), width)
    num_top = 0 if chosen.top_tokens is None else chosen.top_tokens.shape[1]
    shape = (len(logits), max(width, num_top))
    top_tokens, top_logprobs = wanted.new_zeros(shape), logits.new_zeros(shape).float()
    if chosen.top_tokens is not None and chosen.top_logprobs is not None:
        top_tokens[:, :num_top] = chosen.top_tokens
        top_logprobs[:, :num_top] = chosen.top_logprobs
    logprobs = _log_softmax(logits.index_select(0, where).float())
    top_tokens[where, :width] = wanted
    top_logprobs[where, :width] = logprobs.gather(1, wanted)
    return replace(chosen, top_tokens=top_tokens, top_logprobs=top_logprobs)


def do_masks_suffice(batch: HostBatch, table: RowTable) -> bool:
    """Whether rows of a batch want one token each, of those that masks leave, and nothing else."""
    parameters, rows = table.parameters, batch.sampled.rows
    return bool(
        len(rows)
        and not len(batch.prompt.rows)
        and not batch.is_deterministic
        and (parameters.num_logprobs[rows] < 0).all()
        and not parameters.is_search[rows].any()
        and not parameters.is_pooled[batch.spans.rows].any()
        and table.rules.are_masks(rows)
        # those that do not choose yet will want to know these tokens
        and table.rules.are_masks(batch.spans.rows)
    )


@dataclass(frozen=True, slots=True)
class RowMasks:
    """What rules and grammars allow in N of S sampled rows, to be found out.

    Attributes:
        places: [S] int32 which of the masks is a row's, or -1 for none.
    """

    places: Int32Array
    _by_grammars: NextMasks
    _rules: LogitRules
    # place of its mask, row, tokens of its output
    _ruled: list[tuple[int, int, int]]

    def write(self, masks: Int32Array, begun: Callable[[], None] = lambda: None) -> None:
        """Find it out, see `NextMasks.write`.

        Args:
            masks: [N, ceil(vocab_size / 32)] int32, is overwritten.
        """
        num_grammars = len(self._by_grammars.states)
        masks[num_grammars:] = -1
        self._by_grammars.write(masks[:num_grammars], begun)
        for place, row, num_output in self._ruled:
            self._rules.mask(masks[place], row, num_output)

    def __len__(self) -> int:
        return int(self.places.max(initial=-1)) + 1


def masks_of(sampled: NextTokens, table: RowTable) -> RowMasks:
    """Which of the sampled rows have masks."""
    rows = sampled.rows
    num_output = sampled.positions - table.parameters.prompt_lens[rows]
    has_grammar, has_rules = table.grammars.is_active[rows], table.rules.is_active[rows]
    places = np.full(len(rows), -1, np.int32)
    num_grammars = int(has_grammar.sum())
    places[has_grammar] = np.arange(num_grammars)
    others = has_rules & ~has_grammar
    places[others] = num_grammars + np.arange(others.sum())
    ruled = np.stack((places, rows, num_output), axis=1)[has_rules].tolist()
    asked = table.grammars.ask(rows[has_grammar], num_output[has_grammar])
    return RowMasks(places, asked, table.rules, [tuple(each) for each in ruled])


def look_up(backend: KernelBackend, logits: Tensor, prompt: NextTokens, table: RowTable) -> Sampled:
    """Log-probabilities of the prompt tokens that follow logits [P, vocab_size]."""
    rows, positions = stage(table.runtime, prompt.rows, prompt.positions)
    num_logprobs = int(table.parameters.num_prompt_logprobs[prompt.rows].max())
    known = table.history.tokens[rows, positions].long()
    return backend.report_logprobs(known, logits, num_logprobs)


def _draw_by_rules(
    backend: KernelBackend,
    logits: Tensor,
    indices: Indices,
    columns: SamplingColumns,
    sampled: NextTokens,
    table: RowTable,
) -> tuple[Tensor, Tensor]:
    """Draw tokens for K of the sampled rows as their rules have it.

    Args:
        indices: host [K] which of the rows.
        columns: of all sampled rows.

    Returns:
        The indices on the device, and the tokens, `NONE_ALLOWED` where nothing is left; [K] int64.
    """
    (where,) = stage(table.runtime, indices)
    scores = logits.index_select(0, where).float()
    _apply_rules(backend, scores, indices, sampled, table)
    own_columns = replace(take_rows(columns, where), num_logprobs=-1)
    drawn = backend.sample(scores, own_columns).tokens
    # filled: `where` brings a number to the device, and waits for it
    return where, drawn.masked_fill(scores.amax(dim=-1) == -torch.inf, NONE_ALLOWED)


def _rank_by_rules(
    backend: KernelBackend,
    chosen: Sampled,
    logits: Tensor,
    indices: Indices,
    sampled: NextTokens,
    table: RowTable,
) -> None:
    """Replace the alternatives of beams, host [K] of the sampled rows, IN PLACE.

    As in transformers, whose beams lose the probability of what is ruled out.
    """
    assert chosen.top_tokens is not None
    assert chosen.top_logprobs is not None
    (where,) = stage(table.runtime, indices)
    scores = _log_softmax(logits.index_select(0, where).float())
    _apply_rules(backend, scores, indices, sampled, table)
    top_tokens = most_likely(scores, chosen.top_tokens.shape[1])
    chosen.top_tokens[where] = top_tokens
    chosen.top_logprobs[where] = scores.gather(1, top_tokens)


def _log_softmax(logits: Tensor) -> Tensor:
    """Log-probabilities [K, vocab_size], the bits of a row wherever it is among the K."""
    vocab_size = logits.shape[1]
    # torch sums from one border of 16 bytes to the next, where a row may begin or not
    aligned = functional.pad(logits, (0, -vocab_size % 4), value=-torch.inf)
    return aligned.log_softmax(dim=-1)[:, :vocab_size].contiguous()


def _apply_rules(
    backend: KernelBackend,
    scores: Tensor,
    indices: Indices,
    sampled: NextTokens,
    table: RowTable,
) -> None:
    """Change scores [K, vocab_size] of some of the sampled rows IN PLACE."""
    is_ruled = table.rules.is_active[sampled.rows[indices]]
    if is_ruled.all():
        _apply_logit_rules(scores, indices, sampled, table)
    elif is_ruled.any():
        (where,) = stage(table.runtime, np.flatnonzero(is_ruled))
        changed = scores.index_select(0, where)
        _apply_logit_rules(changed, indices[is_ruled], sampled, table)
        scores[where] = changed
    own = replace(sampled, rows=sampled.rows[indices], positions=sampled.positions[indices])
    asked = masks_of(own, table)
    bits = np.empty((len(indices), div_ceil(scores.shape[1], WORD_BITS)), np.int32)
    asked.write(bits)
    masks = bits[asked.places]
    backend.mask_tokens(scores, table.runtime.to_device(torch.from_numpy(masks)))


def _apply_logit_rules(
    scores: Tensor, indices: Indices, sampled: NextTokens, table: RowTable
) -> None:
    rows, lengths = sampled.rows[indices], sampled.positions[indices]
    tokens = scores.new_zeros((len(rows), 0), dtype=torch.int64)
    if table.rules.read_tokens(rows):
        known = table.history.tokens[:, : int(lengths.max())]
        tokens = known.index_select(0, *stage(table.runtime, rows)).long()
    context = Context(
        tokens=tokens,
        lengths=lengths,
        prompt_lens=table.parameters.prompt_lens[rows],
    )
    table.rules.apply(scores, rows, context)


def _columns(sampled: NextTokens, table: RowTable) -> SamplingColumns:
    parameters = table.parameters
    rows, positions = stage(table.runtime, sampled.rows, sampled.positions)
    is_random = parameters.is_random[sampled.rows]
    num_logprobs = parameters.num_logprobs[sampled.rows]
    # what they list is looked up afterwards
    num_logprobs = np.where(parameters.is_listing[sampled.rows], 0, num_logprobs)
    return parameters.columns(
        rows,
        positions,
        num_logprobs=int(num_logprobs.max()),
        all_greedy=not is_random.any(),
        any_filter=bool((is_random & parameters.is_filtered[sampled.rows]).any()),
    )
