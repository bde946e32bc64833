"""Token choice in plain torch: the oracle of every backend and the path without kernels.

A draw is the argmax of scaled logits plus Gumbel noise (Gumbel-max trick, arXiv:1611.01144). The
noise is a hash of (seed, position, token id), so a row's draw does not depend on its batch, its
place in the batch or the steps before it.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from kernels.batch import SMALLEST_TEMPERATURE, Sampled, SamplingColumns

# rows of noise start at a multiple of this many values, so that the vector and the scalar code of
# one elementwise operation meet the same token in every row
_ROW_ALIGNMENT = 64

# instead of a token: where logits are no numbers or allow nothing, and where masks leave nothing
BROKEN, NONE_LEFT = -1, -2

# scores of which the largest one is looked up first
_CHUNK = 1024


def sample(logits: Tensor, columns: SamplingColumns) -> Sampled:
    """Choose one token per row.

    Args:
        logits: [S, vocab], any float dtype; not modified.
        columns: parameters of the S rows.

    Returns:
        Tokens, with log-probabilities of the raw distribution if a row wants them. In greedy rows
        equal logits go to the lowest token id. A row gets `BROKEN` if it holds NaN, or if its
        maximum is not finite.
    """
    logits = logits.float()
    largest, tokens = logits.max(dim=-1)
    if not columns.all_greedy:
        tokens = torch.where(is_random(columns), draw(logits, columns), tokens)
    # one NaN makes the maximum NaN
    tokens = tokens.where(largest.isfinite(), BROKEN)
    return with_logprobs(tokens, logits, columns.num_logprobs)


def with_logprobs(tokens: Tensor, logits: Tensor, num_logprobs: int) -> Sampled:
    """Attach log-probabilities of the raw distribution to chosen tokens [S]; -1 attaches none.

    Of equal logits the lower token comes first, so that what is listed of a row does not depend on
    how many tokens are.
    """
    if num_logprobs < 0:
        return Sampled(tokens=tokens)
    logits = logits.float()
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = logprobs.gather(1, tokens[:, None].clamp(min=0))[:, 0]
    if num_logprobs == 0:
        return Sampled(tokens=tokens, logprobs=chosen)
    top_tokens = most_likely(logits, min(num_logprobs, logits.shape[1]))
    top_logprobs = logprobs.gather(1, top_tokens)
    return Sampled(tokens=tokens, logprobs=chosen, top_tokens=top_tokens, top_logprobs=top_logprobs)


def most_likely(scores: Tensor, count: int) -> Tensor:
    """Tokens [S, count] with the largest of scores [S, vocab] float32, best first.

    Of equal ones the lower token comes first; `torch.topk` leaves that open. All are in the
    `count` chunks with the largest maxima. A row that is no numbers gets any tokens.
    """
    padding = -scores.shape[1] % _CHUNK
    padded = functional.pad(scores, (0, padding), value=-torch.inf) if padding else scores
    chunked = padded.view(len(scores), -1, _CHUNK)
    num_chunks = chunked.shape[1]
    chunks = torch.arange(num_chunks, device=scores.device).expand(len(scores), num_chunks)
    if num_chunks > count:
        chunks = _first(chunked.amax(dim=-1), chunks, count)
    values = chunked.gather(1, chunks[:, :, None].expand(-1, -1, _CHUNK))
    tokens = chunks[:, :, None] * _CHUNK + torch.arange(_CHUNK, device=scores.device)
    # not a number may rank behind what pads the vocabulary
    return _first(values.flatten(1), tokens.flatten(1), count).clamp(max=scores.shape[1] - 1)


def _first(values: Tensor, numbers: Tensor, count: int) -> Tensor:
    """The numbers [S, count] with the largest values; both [S, N], float32 and int64."""
    # a zero has one sign; as integers of another order floats become integers of the same order
    bits = (values + 0.0).view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    # no two keys are equal, so how they are sorted does not matter
    best = ((ordered.long() << 32) - numbers).topk(count, dim=-1)
    return numbers.gather(1, best.indices)


def draw(logits: Tensor, columns: SamplingColumns) -> Tensor:
    """Draw tokens [S] int64 from logits [S, vocab] float32; greedy rows are undefined."""
    scaled = logits / columns.temperature.where(is_random(columns), 1.0)[:, None]
    if columns.any_filter:
        scaled = mask_unlikely(scaled, columns)
    return (scaled + gumbel_noise(columns.seeds, columns.positions, logits.shape[1])).argmax(dim=-1)


def is_random(columns: SamplingColumns) -> Tensor:
    """Which rows draw their token [S] bool, rather than taking the most likely one."""
    return columns.temperature >= SMALLEST_TEMPERATURE


def mask_unlikely(scaled: Tensor, columns: SamplingColumns) -> Tensor:
    """Set what top-k, then top-p, then min-p exclude to -inf; the most likely token always stays.

    Equal values are ranked by token id, so top-k keeps exactly k. Top-p keeps the fewest tokens
    whose probability among the top-k reaches top_p (arXiv:1904.09751); min-p those with at least
    min_p times the largest probability (arXiv:2407.01082).
    """
    ranked, order = scaled.sort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(scaled.shape[1], device=scaled.device)
    kept = (ranks < columns.top_k[:, None]) | (columns.top_k[:, None] <= 0)
    probs = ranked.masked_fill(~kept, -torch.inf).softmax(dim=-1)
    mass_before = probs.cumsum(dim=-1) - probs
    kept &= (mass_before < columns.top_p[:, None]) | (columns.top_p[:, None] >= 1)
    kept &= probs >= columns.min_p[:, None] * probs[:, :1]
    kept[:, 0] = True
    return torch.empty_like(scaled).scatter_(1, order, ranked.masked_fill(~kept, -torch.inf))


def mask_tokens(scores: Tensor, masks: Tensor, places: Tensor | None = None) -> None:
    """Set scores [K, vocab] to -inf IN PLACE where a bit of masks [N, ceil(vocab / 32)] is not set.

    The lowest bit of an int32 word comes first.

    Args:
        places: [K] int32, which of the masks is a row's, or -1 for none; None for all in order.
    """
    flags = (1 << torch.arange(8, device=masks.device)).to(torch.uint8)
    is_allowed = (masks.contiguous().view(torch.uint8)[:, :, None] & flags).bool().flatten(1)
    is_allowed = is_allowed[:, : scores.shape[1]]
    if places is not None:
        is_allowed = is_allowed.index_select(0, places.clamp(min=0)) | (places < 0)[:, None]
    scores.masked_fill_(~is_allowed, -torch.inf)


def take_rows(columns: SamplingColumns, rows: Tensor) -> SamplingColumns:
    """The columns of rows [N] int64; flags that cover all rows stay as they are."""
    return replace(
        columns,
        temperature=columns.temperature[rows],
        top_p=columns.top_p[rows],
        min_p=columns.min_p[rows],
        top_k=columns.top_k[rows],
        seeds=columns.seeds[rows],
        positions=columns.positions[rows],
    )


def gumbel_noise(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise [S, vocab_size] float32 for seeds and positions [S] int64."""
    first_key, second_key = draw_keys(seeds, positions)
    width = vocab_size + -vocab_size % _ROW_ALIGNMENT
    token_ids = torch.arange(width, dtype=torch.int32, device=seeds.device)
    hashed = _mix(_mix(token_ids ^ first_key[:, None]) ^ second_key[:, None])
    # 31 bits as float32 keep their relative precision near 0, where a small exponential wins the
    # draw; a 24-bit uniform would cap the noise at 17 instead of 22
    uniform = ((_shift(hashed, 1).float() + 0.5) * 2.0**-31).clamp_(max=1 - 2.0**-24)
    exponential = -torch.log1p(-uniform)
    return -torch.log(exponential)[:, :vocab_size]


def draw_keys(seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Two int32 keys [S] of (seed, position); distinct for seeds that share their upper half."""
    low, high = seeds.to(torch.int32), (seeds >> 32).to(torch.int32)
    first = _mix(positions.to(torch.int32) ^ _mix(low))
    second = _mix(low ^ _mix(high ^ -0x61C88647))  # the golden ratio times 2**32
    return first, second


def _mix(x: Tensor) -> Tensor:
    """Spread every bit by a bijection: lowbias32, https://github.com/skeeto/hash-prospector."""
    x = (x ^ _shift(x, 16)) * 0x7FEB352D
    x = (x ^ _shift(x, 15)) * -0x7B935975  # 0x846CA68B
    return x ^ _shift(x, 16)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift int32 right, filling with zeros."""
    return (x >> bits) & (0xFFFFFFFF >> bits)
