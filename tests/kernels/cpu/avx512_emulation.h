// What the kernels use of AVX-512, in vectors of the compiler, so that what is written for it runs on
// any CPU with AVX2. Included before the kernels; with EMULATES_BF16 also AVX512-BF16.
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#if !defined(__AVX512F__)

// declared above without them, for a CPU that has less
#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512VL__ 1
#define __AVX512DQ__ 1
#ifdef EMULATES_BF16
#define __AVX512BF16__ 1
#endif

#pragma GCC diagnostic ignored "-Wpsabi"

typedef int32_t emulated_ints __attribute__((vector_size(64)));
typedef uint32_t emulated_words __attribute__((vector_size(64)));
typedef uint16_t emulated_shorts __attribute__((vector_size(64)));
typedef uint16_t emulated_half __attribute__((vector_size(32)));
typedef int64_t emulated_longs __attribute__((vector_size(64)));

// not inlined, or else compiling takes long
#define EMULATED static __attribute__((noinline, unused))

// the first bytes of `count` elements whose bits are set, zeros elsewhere
EMULATED void emulated_masked(void *to, const void *from, uint64_t mask, int count, size_t bytes) {
    for (int i = 0; i < count; i++)
        if (mask >> i & 1) memcpy((char *)to + i * bytes, (const char *)from + i * bytes, bytes);
}

EMULATED __m512i emulated_load_whole(__mmask32 mask, const void *from) {
    emulated_shorts whole = {0};
    emulated_masked(&whole, from, mask, 32, 2);
    return (__m512i)whole;
}

EMULATED __m256i emulated_load_half(__mmask16 mask, const void *from) {
    emulated_half whole = {0};
    emulated_masked(&whole, from, mask, 16, 2);
    return (__m256i)whole;
}

EMULATED void emulated_store_half(void *to, __mmask16 mask, __m256i values) {
    emulated_masked(to, &values, mask, 16, 2);
}

EMULATED void emulated_store_floats(void *to, __mmask16 mask, __m512 values) {
    emulated_masked(to, &values, mask, 16, 4);
}

EMULATED __m512i emulated_widen(__m256i values) {
    const emulated_half narrow = (emulated_half)values;
    emulated_words wide;
    for (int i = 0; i < 16; i++) wide[i] = narrow[i];
    return (__m512i)wide;
}

EMULATED __m256i emulated_narrow(__m512i values) {
    const emulated_words wide = (emulated_words)values;
    emulated_half narrow;
    for (int i = 0; i < 16; i++) narrow[i] = (uint16_t)wide[i];
    return (__m256i)narrow;
}

EMULATED __m256i emulated_round(__m512 values) {
    const emulated_words bits = (emulated_words)values;
    return emulated_narrow((__m512i)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16));
}

// sums += a . b, of pairs
EMULATED __m512 emulated_dot(__m512 sums, __m512bh a, __m512bh b) {
    const emulated_words left = (emulated_words)a, right = (emulated_words)b;
    const __m512 even = (__m512)(left << 16) * (__m512)(right << 16);
    return sums + even + (__m512)(left >> 16 << 16) * (__m512)(right >> 16 << 16);
}

EMULATED __m512i emulated_permute(__m512i a, __m512i places, __m512i b) {
    return (__m512i)__builtin_shuffle((emulated_shorts)a, (emulated_shorts)b,
                                      (emulated_shorts)places);
}

// of each lane of 128 bits the lower or upper values of both, by turns
EMULATED __m512i emulated_unpack_words(__m512i a, __m512i b, int upper) {
    emulated_ints places;
    for (int i = 0; i < 16; i++) places[i] = i / 4 * 4 + i % 4 / 2 + 2 * upper + i % 2 * 16;
    return (__m512i)__builtin_shuffle((emulated_ints)a, (emulated_ints)b, places);
}

EMULATED __m512i emulated_unpack_longs(__m512i a, __m512i b, int upper) {
    emulated_longs places;
    for (int i = 0; i < 8; i++) places[i] = i / 2 * 2 + upper + i % 2 * 8;
    return (__m512i)__builtin_shuffle((emulated_longs)a, (emulated_longs)b, places);
}

// two lanes of 128 bits of each, by two bits
EMULATED __m512i emulated_lanes(__m512i a, __m512i b, int lanes) {
    emulated_longs places;
    for (int i = 0; i < 8; i++)
        places[i] = (lanes >> i / 2 * 2 & 3) * 2 + i % 2 + i / 4 * 8;
    return (__m512i)__builtin_shuffle((emulated_longs)a, (emulated_longs)b, places);
}

EMULATED __m512i emulated_reversed(const uint16_t *values) {
    emulated_shorts vector;
    for (int i = 0; i < 32; i++) vector[i] = values[31 - i];
    return (__m512i)vector;
}

// macros where nothing is optimized
#undef _mm512_slli_epi32
#undef _mm512_srli_epi32
#undef _mm512_shuffle_i32x4
#define _mm512_add_epi16(a, b) ((__m512i)((emulated_shorts)(a) + (emulated_shorts)(b)))
#define _mm512_add_epi32(a, b) ((__m512i)((emulated_words)(a) + (emulated_words)(b)))
#define _mm512_and_si512(a, b) ((__m512i)((emulated_words)(a) & (emulated_words)(b)))
#define _mm512_slli_epi32(a, count) ((__m512i)((emulated_words)(a) << (count)))
#define _mm512_srli_epi32(a, count) ((__m512i)((emulated_words)(a) >> (count)))
#define _mm512_set1_epi16(value) ((__m512i)((emulated_shorts){0} + (uint16_t)(value)))
#define _mm512_set1_epi32(value) ((__m512i)((emulated_words){0} + (uint32_t)(value)))
#define _mm512_set_epi16(...) emulated_reversed((const uint16_t[]){__VA_ARGS__})
#define _mm512_fmadd_ps(a, b, sums) ((a) * (b) + (sums))
#define _mm512_dpbf16_ps emulated_dot
#define _mm512_cvtepu16_epi32 emulated_widen
#define _mm512_cvtepi32_epi16 emulated_narrow
#define _mm512_cvtneps_pbh emulated_round
#define _mm512_maskz_loadu_epi16 emulated_load_whole
#define _mm256_maskz_loadu_epi16 emulated_load_half
#define _mm256_mask_storeu_epi16 emulated_store_half
#define _mm512_mask_storeu_ps emulated_store_floats
#define _mm512_store_si512(to, values) (*(__m512i *)(to) = (values))
#define _mm512_permutex2var_epi16 emulated_permute
#define _mm512_unpacklo_epi32(a, b) emulated_unpack_words(a, b, 0)
#define _mm512_unpackhi_epi32(a, b) emulated_unpack_words(a, b, 1)
#define _mm512_unpacklo_epi64(a, b) emulated_unpack_longs(a, b, 0)
#define _mm512_unpackhi_epi64(a, b) emulated_unpack_longs(a, b, 1)
#define _mm512_shuffle_i32x4 emulated_lanes
#endif
