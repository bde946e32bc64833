"""The noise of a draw on the device: the hash and the transform of `kernels.sampling`.

The hash has the same bits as its twin. The transform comes twice: exactly, and as an approximation
whose error is bounded, by which nearly all tokens of a block are ruled out at a third of the price.
"""

import triton
import triton.language as tl

from kernels import batch

SMALLEST_TEMPERATURE = tl.constexpr(batch.SMALLEST_TEMPERATURE)
_NO_TOKEN = tl.constexpr(2**31 - 1)
# the interpreter knows no assembly
_IS_COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)


@triton.jit
def _mix(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def draw_keys(seed, position):
    """Two uint32 keys of (seed, position), both int64."""
    low, high = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    first = _mix(position.to(tl.uint32) ^ _mix(low))
    second = _mix(low ^ _mix(high ^ 0x9E3779B9))  # the golden ratio times 2**32
    return first, second


@triton.jit
def _uniform(tokens, first_key, second_key):
    hashed = _mix(_mix(tokens.to(tl.uint32) ^ first_key) ^ second_key)
    uniform = ((hashed >> 1).to(tl.float32) + 0.5) * 4.656612873077393e-10  # 2**-31
    return tl.minimum(uniform, 0.99999994)  # 1 - 2**-24


@triton.jit
def _gumbel(uniform):
    """-log(-log1p(-u)), accurate to a few units in the last place."""
    rest = 1.0 - uniform
    # log(rest) is that of a rounded number; the ratio undoes the rounding (W. Kahan's log1p)
    exponential = -tl.log(rest) * tl.div_rn(uniform, tl.where(rest == 1.0, 1.0, 1.0 - rest))
    return -tl.log(tl.where(rest == 1.0, uniform, exponential))


@triton.jit
def _rough_log(x):
    """Natural logarithm in two instructions instead of twenty, to within 1e-6 around 1."""
    if _IS_COMPILED:
        log = tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        log = tl.log2(x)
    return log * 0.6931472


@triton.jit
def _rough_gumbel(uniform):
    """The same to within 3e-5."""
    # near 0 the logarithm of 1 - u has lost the digits of u
    series = uniform * (1.0 + uniform * (0.5 + uniform * 0.33333334))
    exponential = tl.where(uniform < 0.03, series, -_rough_log(1.0 - uniform))
    return -_rough_log(exponential)


@triton.jit
def score(logits, tokens, temperature, first_key, second_key):
    """What a draw maximises: scaled logits float32 plus noise, for any shape of tokens int32."""
    return tl.div_rn(logits, temperature) + _gumbel(_uniform(tokens, first_key, second_key))


@triton.jit
def first_token(is_wanted, tokens):
    """The lowest wanted token of a block, or a large number."""
    return tl.min(tl.where(is_wanted, tokens, _NO_TOKEN), axis=0)


@triton.jit
def best_draw(logits, tokens, temperature, first_key, second_key):
    """The largest score of a block and its token.

    Args:
        logits: [BLOCK] float32, -inf for what cannot be drawn; finite somewhere, without NaN, or
            the token means nothing.
        tokens: [BLOCK] int32.
    """
    rough = logits * (1.0 / temperature) + _rough_gumbel(_uniform(tokens, first_key, second_key))
    largest = tl.max(rough, axis=0)
    # twice the error of the noise, and that of a product instead of a quotient
    limit = largest - (1e-4 + 1e-6 * tl.abs(largest))
    limit = tl.maximum(limit, -3.4e38)
    best, token, near = -float("inf"), -1, -1
    # hardly ever more than one
    for _ in range(tl.sum((rough >= limit).to(tl.int32), axis=0)):
        near = first_token((rough >= limit) & (tokens > near), tokens)
        logit = tl.max(tl.where(tokens == near, logits, -float("inf")), axis=0)
        scored = score(logit, near, temperature, first_key, second_key)
        # of equal scores the lower token stays
        token = tl.where(scored > best, near, token)
        best = tl.maximum(scored, best)
    return best, token
