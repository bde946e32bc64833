// What all ways of multiplying by packed operands share: weights of linear layers, and keys and
// values of attention.
#pragma once

#include "common.h"

enum {
    BLOCK_N = 32,            // outputs of one block of packed weights
    STEP_K = 32,             // inputs of one step
    STEP = BLOCK_N * STEP_K  // elements of one block's step
};

#if defined(ELEMENT_BF16) && defined(__AVX512BF16__) && !defined(PORTABLE)
#define HAS_PAIRS
#include <immintrin.h>

// what is multiplied: bfloat16 in pairs, whose products are summed in float
typedef element operand;
INLINE operand to_operand(float x) { return narrow(x); }
INLINE operand operand_of(element x) { return x; }
#else
typedef float operand;
INLINE operand to_operand(float x) { return x; }
INLINE operand operand_of(element x) { return widen(x); }
#endif

// out [m, n] = x [m, k] @ weight.T + bias; bias [n] may be NULL. Rows of out and x are strides apart.
//
// In pairs, k is a multiple of 32, and weights are packed as [ceil(n / 32), k / 32, 2 halves, 16
// pairs of k, 16 outputs, 2], zeros beyond n; else as [n / 32, k, 32], n being a multiple of 32.
struct product {
    void *out;
    int is_wide;    // whether out holds float32, not bfloat16
    int is_cached;  // whether the weights are in a cache already
    const operand *x, *packed;
    const element *bias;
    int64_t m, n, k, out_stride, x_stride;
};

#ifdef HAS_PAIRS
INLINE __m512 widen_half(__m512i x, int half) {
    const __m256i part = half ? _mm512_extracti64x4_epi64(x, 1) : _mm512_castsi512_si256(x);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(part), 16));
}

// Adds the bias to 32 sums and stores them from out[row, start] on, as far as there are outputs.
INLINE void store_sums(const struct product *p, int64_t row, int64_t start, __m512 low,
                       __m512 high) {
    const int64_t left = p->n - start, at = row * p->out_stride + start;
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
