// Packs keys and values of one key head as `struct product` wants its weights: keys as weights of
// which each token is an output, values as weights of which each token is an input.
//
// For each line that is read, one that will be is asked for.
#pragma once

#include "attention_ahead.h"

// token t lies at start[t] + shift
struct tokens {
    const element *const *start;
    int64_t shift;
    struct ahead *ahead;
};

#if defined(HAS_WIDE_VECTORS)

INLINE __mmask32 mask_of(int64_t count) {
    return count >= 32 ? 0xFFFFFFFF : (__mmask32)((1u << count) - 1);
}

// Exchanges rows and columns of a 16 x 16 matrix of pairs: in 2 x 2, then 4 x 4, then whole.
INLINE void transpose(__m512i *rows) {
    __m512i two[16], four[16];
    for (int i = 0; i < 16; i += 2) {
        two[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        two[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    // four[4 j + c] has column c of each lane, of rows 4 j to 4 j + 3
    for (int i = 0; i < 16; i += 4)
        for (int c = 0; c < 2; c++) {
            four[i + 2 * c] = _mm512_unpacklo_epi64(two[i + c], two[i + c + 2]);
            four[i + 2 * c + 1] = _mm512_unpackhi_epi64(two[i + c], two[i + c + 2]);
        }
    for (int c = 0; c < 4; c++) {
        const __m512i even_a = _mm512_shuffle_i32x4(four[c], four[4 + c], 0x88);
        const __m512i even_b = _mm512_shuffle_i32x4(four[8 + c], four[12 + c], 0x88);
        const __m512i odd_a = _mm512_shuffle_i32x4(four[c], four[4 + c], 0xDD);
        const __m512i odd_b = _mm512_shuffle_i32x4(four[8 + c], four[12 + c], 0xDD);
        rows[c] = _mm512_shuffle_i32x4(even_a, even_b, 0x88);
        rows[4 + c] = _mm512_shuffle_i32x4(odd_a, odd_b, 0x88);
        rows[8 + c] = _mm512_shuffle_i32x4(even_a, even_b, 0xDD);
        rows[12 + c] = _mm512_shuffle_i32x4(odd_a, odd_b, 0xDD);
    }
}

// Packs `count` keys, a multiple of 32; dimensions from head_dim to `depth` become zeros.
static void pack_keys(operand *packed, const struct tokens *keys, int64_t count, int64_t head_dim,
                      int64_t depth) {
    for (int64_t block = 0; block < count; block += BLOCK_N) {
        for (int64_t t = block; t < block + BLOCK_N; t++)
            for (int64_t d = 0; d < depth; d += STEP_K) ask(keys->ahead);
        for (int64_t d = 0; d < depth; d += STEP_K)
            for (int64_t half = block; half < block + BLOCK_N; half += 16, packed += STEP / 2) {
                __m512i rows[16];
#pragma GCC unroll 16
                for (int i = 0; i < 16; i++) {
                    rows[i] = _mm512_maskz_loadu_epi16(mask_of(head_dim - d),
                                                       keys->start[half + i] + keys->shift + d);
                }
                transpose(rows);
#pragma GCC unroll 16
                for (int i = 0; i < 16; i++) _mm512_store_si512(packed + i * 32, rows[i]);
            }
    }
}

// Packs `count` values, a multiple of 32.
static void pack_values(operand *packed, const struct tokens *values, int64_t count,
                        int64_t head_dim, int64_t depth) {
    // lanes of dimensions (0, 16), (1, 17), ...: a pair of tokens side by side in each lane
    const __m512i first = _mm512_set_epi16(
        47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4,
        35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    for (int64_t t = 0; t < count; t += 2) {
        const element *const value = values->start[t] + values->shift;
        const element *const next = values->start[t + 1] + values->shift;
        operand *const pair = packed + t / STEP_K * STEP + t % STEP_K / 2 * 32;
        for (int64_t d = 0; d < depth; d += BLOCK_N) {
            ask(values->ahead);
            ask(values->ahead);
            const __mmask32 mask = mask_of(head_dim - d);
            const __m512i even = _mm512_maskz_loadu_epi16(mask, value + d);
            const __m512i odd = _mm512_maskz_loadu_epi16(mask, next + d);
            operand *const target = pair + d * count;
            _mm512_store_si512(target, _mm512_permutex2var_epi16(even, first, odd));
            _mm512_store_si512(target + STEP / 2, _mm512_permutex2var_epi16(even, second, odd));
        }
    }
}

#elif defined(HAS_PAIRS)

// 16 elements, or as many as there are (an even number) and zeros.
INLINE words some_words_at(const element *from, int64_t count) {
    if (count >= 16) return words_at(from);
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count / 2), lanes);
    return _mm256_maskload_epi32((const int *)from, mask);
}

// Exchanges rows and columns of an 8 x 8 matrix of pairs: in 2 x 2, then 4 x 4, then whole.
INLINE void transpose(words *rows) {
    words two[8], four[8];
    for (int i = 0; i < 8; i += 2) {
        two[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
        two[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    // four[4 j + c] has column c of each lane, of rows 4 j to 4 j + 3
    for (int i = 0; i < 8; i += 4)
        for (int c = 0; c < 2; c++) {
            four[i + 2 * c] = _mm256_unpacklo_epi64(two[i + c], two[i + c + 2]);
            four[i + 2 * c + 1] = _mm256_unpackhi_epi64(two[i + c], two[i + c + 2]);
        }
    for (int c = 0; c < 4; c++) {
        rows[c] = _mm256_permute2x128_si256(four[c], four[4 + c], 0x20);
        rows[4 + c] = _mm256_permute2x128_si256(four[c], four[4 + c], 0x31);
    }
}

// Packs 8 pairs of dimensions from d on, of 8 tokens.
INLINE void pack_square(operand *packed, const struct tokens *keys, int64_t token, int64_t d,
                        int64_t head_dim) {
    words rows[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        rows[i] = some_words_at(keys->start[token + i] + keys->shift + d, head_dim - d);
    transpose(rows);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) _mm256_store_si256((words *)(packed + i * 32), rows[i]);
}

// Packs `count` keys, a multiple of 32; dimensions from head_dim to `depth` become zeros.
static void pack_keys(operand *packed, const struct tokens *keys, int64_t count, int64_t head_dim,
                      int64_t depth) {
    for (int64_t block = 0; block < count; block += BLOCK_N) {
        for (int64_t t = block; t < block + BLOCK_N; t++)
            for (int64_t d = 0; d < depth; d += STEP_K) ask(keys->ahead);
        for (int64_t d = 0; d < depth; d += STEP_K)
            for (int64_t half = block; half < block + BLOCK_N; half += 16, packed += STEP / 2)
                for (int square = 0; square < 4; square++) {
                    const int64_t token = square % 2 * 8, dimension = square / 2 * 16;
                    pack_square(packed + dimension * 16 + token * 2, keys, half + token,
                                d + dimension, head_dim);
                }
    }
}

// Packs `count` values, a multiple of 32.
static void pack_values(operand *packed, const struct tokens *values, int64_t count,
                        int64_t head_dim, int64_t depth) {
    for (int64_t t = 0; t < count; t += 2) {
        const element *const value = values->start[t] + values->shift;
        const element *const next = values->start[t + 1] + values->shift;
        operand *const pair = packed + t / STEP_K * STEP + t % STEP_K / 2 * 32;
        for (int64_t d = 0; d < depth; d += 16) {
            ask(values->ahead);
            const words even = some_words_at(value + d, head_dim - d);
            const words odd = some_words_at(next + d, head_dim - d);
            const words low = _mm256_unpacklo_epi16(even, odd);
            const words high = _mm256_unpackhi_epi16(even, odd);
            words *const target =
                (words *)(pair + d / BLOCK_N * BLOCK_N * count + d % BLOCK_N / 16 * (STEP / 2));
            _mm256_store_si256(target, _mm256_permute2x128_si256(low, high, 0x20));
            _mm256_store_si256(target + 1, _mm256_permute2x128_si256(low, high, 0x31));
        }
    }
}

#else

INLINE void ask_for_token(const struct tokens *tokens, int64_t head_dim) {
    const int64_t line = LINE_BYTES / (int64_t)sizeof(element);
    for (int64_t d = 0; d < head_dim; d += line) ask(tokens->ahead);
}

static void pack_keys(operand *restrict packed, const struct tokens *keys, int64_t count,
                      int64_t head_dim, int64_t depth) {
    for (int64_t t = 0; t < count; t++) {
        const element *const key = keys->start[t] + keys->shift;
        ask_for_token(keys, head_dim);
        operand *const column = packed + t / BLOCK_N * BLOCK_N * depth + t % BLOCK_N;
        for (int64_t d = 0; d < depth; d++)
            column[d * BLOCK_N] = d < head_dim ? operand_of(key[d]) : 0;
    }
}

static void pack_values(operand *restrict packed, const struct tokens *values, int64_t count,
                        int64_t head_dim, int64_t depth) {
    for (int64_t t = 0; t < count; t++) {
        const element *const value = values->start[t] + values->shift;
        ask_for_token(values, head_dim);
        for (int64_t d = 0; d < depth; d++)
            packed[(d / BLOCK_N * count + t) * BLOCK_N + d % BLOCK_N] =
                d < head_dim ? operand_of(value[d]) : 0;
    }
}
#endif
