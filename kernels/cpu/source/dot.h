// The two products of attention, for rows of keys and values that lie anywhere in memory: row t
// starts at rows[t] + shift. Both ask for the rows at `ahead` from there, which the caller needs
// next, since rows of different blocks are too far apart for the hardware to foresee.
//
// With AVX512-BF16 pairs of bfloat16 are multiplied and summed in float; probabilities are rounded
// to bfloat16 first. Else plain loops that the compiler vectorises.
#pragma once

#include "common.h"

struct rows {
    const element *const *start;
    int64_t shift, ahead;
};

// into the second level: what is asked for ahead does not fit the first beside what is read now
INLINE void prefetch(const element *x) { __builtin_prefetch(x, 0, 2); }

#if defined(ELEMENT_BF16) && defined(__AVX512BF16__) && !defined(PORTABLE)
#include <immintrin.h>

typedef element probability;
INLINE probability to_probability(float x) { return narrow(x); }

INLINE __m512bh load_pairs(const element *x, __mmask32 mask) {
    return (__m512bh)_mm512_maskz_loadu_epi16(mask, x);
}

INLINE __mmask32 mask_of(int64_t count) {
    return count >= 32 ? 0xFFFFFFFF : (__mmask32)((1u << count) - 1);
}

// sums of four vectors
INLINE __m128 reduce_four(__m512 a, __m512 b, __m512 c, __m512 d) {
    __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512 low = _mm512_castpd_ps(
        _mm512_unpacklo_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd)));
    __m512 high = _mm512_castpd_ps(
        _mm512_unpackhi_pd(_mm512_castps_pd(ab), _mm512_castps_pd(cd)));
    __m512 all = _mm512_add_ps(low, high);
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// scores[h * stride + t] = q[h] . keys[t] for q [heads, head_dim]; count is a multiple of 4
INLINE void score(float *scores, const element *q, const struct rows *keys, int64_t heads,
                  int64_t count, int64_t head_dim, int64_t stride) {
    for (int64_t t = 0; t < count; t += 4) {
        const element *const *const key = keys->start + t;
        for (int i = 0; i < 4; i++)
            for (int64_t d = 0; d < head_dim; d += 32)
                prefetch(key[i] + keys->shift + keys->ahead + d);
        for (int64_t h = 0; h < heads; h++) {
            __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                              _mm512_setzero_ps()};
            for (int64_t d = 0; d < head_dim; d += 32) {
                const __mmask32 mask = mask_of(head_dim - d);
                const __m512bh query = load_pairs(q + h * head_dim + d, mask);
                for (int i = 0; i < 4; i++) {
                    const __m512bh pairs = load_pairs(key[i] + keys->shift + d, mask);
                    sums[i] = _mm512_dpbf16_ps(sums[i], query, pairs);
                }
            }
            _mm_storeu_ps(scores + h * stride + t, reduce_four(sums[0], sums[1], sums[2], sums[3]));
        }
    }
}

// One group of at most four heads and 32 dimensions: the sums stay in registers.
INLINE void mix_group(float *out, const probability *probs, const struct rows *values,
                      int64_t heads, int64_t count, int64_t head_dim, int64_t stride, int64_t d) {
    const int64_t at = values->shift + d;
    // lanes of dimensions (0, 16), (1, 17), ...: a pair of tokens side by side in each lane
    const __m512i first = _mm512_set_epi16(
        47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4,
        35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    const __mmask32 mask = mask_of(head_dim - d);
    __m512 low[4], high[4];
    for (int64_t h = 0; h < heads; h++) low[h] = high[h] = _mm512_setzero_ps();
    for (int64_t t = 0; t < count; t += 2) {
        const element *const row = values->start[t] + at, *const next = values->start[t + 1] + at;
        prefetch(row + values->ahead);
        prefetch(next + values->ahead);
        const __m512i even = _mm512_maskz_loadu_epi16(mask, row);
        const __m512i odd = _mm512_maskz_loadu_epi16(mask, next);
        const __m512bh front = (__m512bh)_mm512_permutex2var_epi16(even, first, odd);
        const __m512bh back = (__m512bh)_mm512_permutex2var_epi16(even, second, odd);
        for (int64_t h = 0; h < heads; h++) {
            int32_t pair;
            memcpy(&pair, probs + h * stride + t, sizeof pair);
            const __m512bh weights = (__m512bh)_mm512_set1_epi32(pair);
            low[h] = _mm512_dpbf16_ps(low[h], weights, front);
            high[h] = _mm512_dpbf16_ps(high[h], weights, back);
        }
    }
    for (int64_t h = 0; h < heads; h++) {
        _mm512_mask_storeu_ps(out + h * head_dim + d, (__mmask16)mask, low[h]);
        _mm512_mask_storeu_ps(out + h * head_dim + d + 16, (__mmask16)(mask >> 16), high[h]);
    }
}

// out[h] = sum over t of probs[h * stride + t] * values[t], out [heads, head_dim]; count is even
INLINE void mix(float *out, const probability *probs, const struct rows *values, int64_t heads,
                int64_t count, int64_t head_dim, int64_t stride) {
    for (int64_t d = 0; d < head_dim; d += 32) {
        for (int64_t h = 0; h < heads; h += 4) {
            float *const sums = out + h * head_dim;
            const probability *const row = probs + h * stride;
            // a constant number of heads lets the compiler keep the sums in registers
            switch (heads - h) {
                case 1: mix_group(sums, row, values, 1, count, head_dim, stride, d); break;
                case 2: mix_group(sums, row, values, 2, count, head_dim, stride, d); break;
                case 3: mix_group(sums, row, values, 3, count, head_dim, stride, d); break;
                default: mix_group(sums, row, values, 4, count, head_dim, stride, d);
            }
        }
    }
}

#else
typedef float probability;
INLINE probability to_probability(float x) { return x; }

INLINE void score(float *scores, const element *q, const struct rows *keys, int64_t heads,
                  int64_t count, int64_t head_dim, int64_t stride) {
    for (int64_t t = 0; t < count; t++) {
        const element *const key = keys->start[t] + keys->shift;
        prefetch(key + keys->ahead);
        for (int64_t h = 0; h < heads; h++) {
            const element *const query = q + h * head_dim;
            float sum = 0;
            for (int64_t d = 0; d < head_dim; d++) sum += widen(query[d]) * widen(key[d]);
            scores[h * stride + t] = sum;
        }
    }
}

INLINE void mix(float *restrict out, const probability *probs, const struct rows *values,
                int64_t heads, int64_t count, int64_t head_dim, int64_t stride) {
    memset(out, 0, (size_t)(heads * head_dim) * sizeof *out);
    for (int64_t t = 0; t < count; t++) {
        const element *const value = values->start[t] + values->shift;
        prefetch(value + values->ahead);
        for (int64_t h = 0; h < heads; h++) {
            const float weight = probs[h * stride + t];
            float *const sum = out + h * head_dim;
            for (int64_t d = 0; d < head_dim; d++) sum[d] += weight * widen(value[d]);
        }
    }
}
#endif
