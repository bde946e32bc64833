// Vectors of floats, and of pairs of bfloat16 whose products are summed in float: 512 bits with
// AVX-512, else 256 with AVX2. AVX512-BF16 multiplies pairs; elsewhere they are widened first.
#pragma once

#include "common.h"

#if defined(ELEMENT_BF16) && !defined(PORTABLE)
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define HAS_PAIRS
#define HAS_WIDE_VECTORS
#elif defined(__AVX2__) && defined(__FMA__)
#define HAS_PAIRS
#endif
#endif

#ifdef HAS_PAIRS
#include <immintrin.h>

#ifdef HAS_WIDE_VECTORS
typedef __m512 floats;
typedef __m512i words;
#else
typedef __m256 floats;
typedef __m256i words;
#endif

enum {
    VECTOR = sizeof(floats) / sizeof(float),
    MOST_SUMS = VECTOR == 16 ? 24 : 12  // vectors that the registers hold beside operands
};

INLINE words words_at(const element *pairs) {
    words vector;
    memcpy(&vector, pairs, sizeof vector);
    return vector;
}

// The same pair in all lanes.
INLINE words spread_pair(const element *pair) {
    int32_t both;
    memcpy(&both, pair, sizeof both);
#ifdef HAS_WIDE_VECTORS
    return _mm512_set1_epi32(both);
#else
    return _mm256_set1_epi32(both);
#endif
}

// What is multiplied at once: pairs, or in PHASES one after the other the first and the second of
// each, widened.
#ifdef __AVX512BF16__
typedef __m512bh factors;
enum { PHASES = 1 };

INLINE factors factors_of(words pairs, int phase) { return (void)phase, (__m512bh)pairs; }
INLINE floats add_products(floats sums, factors a, factors b) {
    return _mm512_dpbf16_ps(sums, a, b);
}
#else
typedef floats factors;
enum { PHASES = 2 };

INLINE factors factors_of(words pairs, int phase) {
#ifdef HAS_WIDE_VECTORS
    return (floats)(phase ? _mm512_and_si512(pairs, _mm512_set1_epi32((int)0xFFFF0000))
                          : _mm512_slli_epi32(pairs, 16));
#else
    return (floats)(phase ? _mm256_and_si256(pairs, _mm256_set1_epi32((int)0xFFFF0000))
                          : _mm256_slli_epi32(pairs, 16));
#endif
}

INLINE floats add_products(floats sums, factors a, factors b) {
#ifdef HAS_WIDE_VECTORS
    return _mm512_fmadd_ps(a, b, sums);
#else
    return _mm256_fmadd_ps(a, b, sums);
#endif
}
#endif

#ifdef HAS_WIDE_VECTORS
// the first `count` lanes, of as many as there are
INLINE __mmask16 lanes_of(int64_t count) {
    return (__mmask16)((1u << (count < VECTOR ? count : VECTOR)) - 1);
}
#endif

// VECTOR elements as floats, or as many of them as there are.
INLINE floats widened_at(const element *from, int64_t count) {
#ifdef HAS_WIDE_VECTORS
    const __m256i narrow = _mm256_maskz_loadu_epi16(lanes_of(count), from);
    return (floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16);
#else
    element whole[VECTOR] = {0};
    memcpy(whole, from, (size_t)(count < VECTOR ? count : VECTOR) * sizeof *from);
    const __m128i narrow = _mm_loadu_si128((const __m128i *)whole);
    return (floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16);
#endif
}

INLINE void store_floats(float *to, floats values, int64_t count) {
#ifdef HAS_WIDE_VECTORS
    _mm512_mask_storeu_ps(to, lanes_of(count), values);
#else
    if (count >= VECTOR)
        _mm256_storeu_ps(to, values);
    else
        memcpy(to, &values, (size_t)count * sizeof *to);
#endif
}

// Rounds VECTOR values, and stores as many of them as there is place for.
INLINE void store_narrow(element *to, floats values, int64_t count) {
#if defined(__AVX512BF16__)
    _mm256_mask_storeu_epi16(to, lanes_of(count), (__m256i)_mm512_cvtneps_pbh(values));
#elif defined(HAS_WIDE_VECTORS)
    const words bits = (words)values;
    const words last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const words rounded =
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), last);
    _mm256_mask_storeu_epi16(to, lanes_of(count),
                             _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
#else
    const words bits = (words)values;
    const words last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const words rounded = _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), last), 16);
    const __m128i narrowed = _mm_packus_epi32(_mm256_castsi256_si128(rounded),
                                              _mm256_extracti128_si256(rounded, 1));
    if (count >= VECTOR)
        _mm_storeu_si128((__m128i *)to, narrowed);
    else
        memcpy(to, &narrowed, (size_t)count * sizeof *to);
#endif
}
#endif
