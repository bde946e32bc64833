"""The k-th largest logit of a row, without sorting the row."""

import triton
import triton.language as tl

# logits that are kept at once; the bound from chunks lets hardly more than k of them pass
CAPACITY = 2048


@triton.jit
def load_block(row, start, vocab_size, BLOCK: tl.constexpr):
    """Logits [BLOCK] float32 of the tokens from `start` on, -inf beyond the end, and their ids."""
    tokens = start + tl.arange(0, BLOCK)
    values = tl.load(row + tokens, tokens < vocab_size, other=-float("inf"))
    return values.to(tl.float32), tokens


@triton.jit
def kth_of_chunks(chunk_largest, num_chunks, k, CHUNKS: tl.constexpr):
    """The k-th largest maximum of a row's chunks: at least k logits of the row are as large."""
    chunks = tl.arange(0, CHUNKS)
    maxima = tl.load(chunk_largest + chunks, chunks < num_chunks, other=-float("inf"))
    ranked = tl.sort(maxima, descending=True)
    return tl.max(tl.where(chunks == k - 1, ranked, -float("inf")), axis=0)


@triton.jit
def collect(
    values_out,
    tokens_out,
    counter,
    row,
    vocab_size,
    floor,
    BLOCK: tl.constexpr,
    CAPACITY: tl.constexpr,
):
    """Store logits of at least `floor` and their tokens, in any order, and return how many.

    Beyond CAPACITY they are counted, but not stored.

    Args:
        counter: place for an int32 that no other program uses.
    """
    tl.store(counter, 0)
    tl.debug_barrier()
    for start in range(0, vocab_size, BLOCK):
        values, tokens = load_block(row, start, vocab_size, BLOCK)
        is_wanted = (values >= floor) & (tokens < vocab_size)
        # a few hundred in all; with a prefix sum over every block this took 80 us a row on an H100
        counters = counter + tl.zeros_like(tokens)
        # the barriers around the loop order memory
        places = tl.atomic_add(counters, 1, is_wanted, sem="relaxed", scope="cta")
        is_stored = is_wanted & (places < CAPACITY)
        tl.store(values_out + places, values, is_stored)
        tl.store(tokens_out + places, tokens, is_stored)
    # they are read by other threads of this program
    tl.debug_barrier()
    return tl.atomic_add(counter, 0, scope="cta")


@triton.jit
def kth_of_block(values, k):
    """The k-th largest of a block of float32."""
    keys = _ordered(values)
    key = tl.zeros([], tl.uint32)
    for step in range(32):
        raised = key | (tl.full([], 1, tl.uint32) << (31 - step))
        key = tl.where(tl.sum((keys >= raised).to(tl.int32), axis=0) >= k, raised, key)
    return _unordered(key)


@triton.jit
def kth_of_row(row, vocab_size, k, KEY_BYTES: tl.constexpr, BLOCK: tl.constexpr):
    """The k-th largest logit of a row by the digits of its key, the most significant first.

    Args:
        KEY_BYTES: leading bytes of a float32 that tell apart all logits.
    """
    digits = tl.arange(0, 256)
    prefix = 0
    rest = k
    for byte in tl.static_range(KEY_BYTES):
        counts = tl.zeros([256], tl.int32)
        for start in range(0, vocab_size, BLOCK):
            values, tokens = load_block(row, start, vocab_size, BLOCK)
            keys = _ordered(values)
            is_open = tokens < vocab_size
            if byte > 0:
                is_open = is_open & ((keys >> (32 - 8 * byte)) == prefix)
            digit = ((keys >> (24 - 8 * byte)) & 255).to(tl.int32)
            counts += tl.histogram(digit, 256, mask=is_open)
        # tokens with a larger digit
        above = tl.sum(counts, axis=0) - tl.cumsum(counts, axis=0)
        chosen = tl.max(tl.where(above + counts >= rest, digits, 0), axis=0)
        rest -= tl.sum(tl.where(digits == chosen, above, 0), axis=0)
        prefix = (prefix << 8) | chosen.to(tl.uint32)
    num_low_bits: tl.constexpr = 32 - 8 * KEY_BYTES
    key = prefix << num_low_bits
    # the low bits of a logit are 0, so those of the key of a negative one are 1
    low_bits = tl.full([], (1 << num_low_bits) - 1, tl.uint32)
    return _unordered(tl.where(key.to(tl.int32, bitcast=True) < 0, key, key | low_bits))


@triton.jit
def _ordered(values):
    """Map float32 to uint32 in the same order; both zeros to one number."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) | -(2**31))).to(tl.uint32, bitcast=True)


@triton.jit
def _unordered(key):
    signed = key.to(tl.int32, bitcast=True)
    bits = tl.where(signed < 0, signed ^ -(2**31), ~signed)
    return bits.to(tl.float32, bitcast=True)
