// What both ways of multiplying by packed bfloat16 weights share: the product and its result.
#pragma once

#include "common.h"

#if defined(ELEMENT_BF16) && defined(__AVX512BF16__) && !defined(PORTABLE)
#define HAS_PAIRS
#include <immintrin.h>

enum {
    BLOCK_N = 32,            // outputs of one block of packed weights
    STEP_K = 32,             // inputs of one step
    STEP = BLOCK_N * STEP_K  // elements of one block's step
};

// out [m, n] = x [m, k] @ weight.T + bias; bias [n] may be NULL, k is a multiple of 32. Weights are
// packed as [ceil(n / 32), k / 32, 2 halves, 16 pairs of k, 16 outputs, 2], zeros beyond n.
struct product {
    void *out;
    int is_wide;  // whether out holds float32, not bfloat16
    const element *x, *packed, *bias;
    int64_t m, n, k;
};

INLINE __m512 widen_half(__m512i x, int half) {
    const __m256i part = half ? _mm512_extracti64x4_epi64(x, 1) : _mm512_castsi512_si256(x);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(part), 16));
}

// Adds the bias to 32 sums and stores them from out[row, start] on, as far as there are outputs.
INLINE void store_sums(const struct product *p, int64_t row, int64_t start, __m512 low,
                       __m512 high) {
    const int64_t left = p->n - start, at = row * p->n + start;
    const __mmask32 mask = left >= BLOCK_N ? 0xFFFFFFFF : (__mmask32)((1u << left) - 1);
    if (p->bias) {
        const __m512i shift = _mm512_maskz_loadu_epi16(mask, p->bias + start);
        low = _mm512_add_ps(low, widen_half(shift, 0));
        high = _mm512_add_ps(high, widen_half(shift, 1));
    }
    if (p->is_wide) {
        float *const out = (float *)p->out + at;
        _mm512_mask_storeu_ps(out, (__mmask16)mask, low);
        _mm512_mask_storeu_ps(out + 16, (__mmask16)(mask >> 16), high);
    } else {
        _mm512_mask_storeu_epi16((element *)p->out + at, mask,
                                 (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}
#endif
