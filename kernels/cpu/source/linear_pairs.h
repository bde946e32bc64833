// Product with packed weights in AVX512-BF16: pairs of inputs are multiplied and summed in float.
#pragma once

#include "linear.h"

#ifdef HAS_PAIRS

enum {
    MOST_ROWS = 12,  // whose sums over one block of outputs fit the registers
    STEPS_AHEAD = 8  // 16 KiB
};

// Asks for a step of weights that follows: it is too far for the hardware to foresee.
INLINE void prefetch_step(const element *packed) {
    for (int64_t i = 0; i < STEP; i += 32) _mm_prefetch(packed + i, _MM_HINT_T1);
}

// Sums of `rows` rows from `row` on over `blocks` blocks of outputs from `start` on; more rows or
// blocks hide the latency of a sum. The first of `num_turns` turns over a block finds its weights in
// the cache if those over the block before share the work of asking for them; a turn that is the only
// one asks for its own.
INLINE void multiply_pairs(const struct product *p, int64_t row, int64_t start, const int rows,
                           const int blocks, int64_t turn, int64_t num_turns) {
    const element *const x = p->x + row * p->x_stride, *const packed = p->packed + start * p->k;
    const int is_asking = !p->is_cached;
    const int64_t ahead = num_turns == 1 ? STEPS_AHEAD * STEP : BLOCK_N * p->k;
    __m512 low[MOST_ROWS], high[MOST_ROWS];
    // every loop over the sums is unrolled, or else they stay in memory
#pragma GCC unroll 12
    for (int i = 0; i < rows * blocks; i++) low[i] = high[i] = _mm512_setzero_ps();
    for (int64_t step = 0; step < p->k / STEP_K; step++) {
        const element *const weights = packed + step * STEP, *const inputs = x + step * STEP_K;
        if (is_asking && step % num_turns == turn) prefetch_step(weights + ahead);
        for (int pair = 0; pair < STEP_K / 2; pair++) {
            __m512bh first[2], second[2];
#pragma GCC unroll 2
            for (int b = 0; b < blocks; b++) {
                const element *const at = weights + b * BLOCK_N * p->k + pair * 32;
                first[b] = (__m512bh)_mm512_loadu_si512(at);
                second[b] = (__m512bh)_mm512_loadu_si512(at + STEP / 2);
            }
#pragma GCC unroll 12
            for (int r = 0; r < rows; r++) {
                int32_t both;
                memcpy(&both, inputs + r * p->x_stride + pair * 2, sizeof both);
                const __m512bh input = (__m512bh)_mm512_set1_epi32(both);
#pragma GCC unroll 2
                for (int b = 0; b < blocks; b++) {
                    const int i = r * blocks + b;
                    low[i] = _mm512_dpbf16_ps(low[i], first[b], input);
                    high[i] = _mm512_dpbf16_ps(high[i], second[b], input);
                }
            }
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < rows * blocks; i++)
        store_sums(p, row + i / blocks, start + i % blocks * BLOCK_N, low[i], high[i]);
}

// All rows over one block of outputs, as many at a time as the registers hold.
static void multiply_block(const struct product *p, int64_t start) {
    const int64_t num_turns = (p->m + MOST_ROWS - 1) / MOST_ROWS;
    int64_t row = 0;
    for (int64_t turn = 0; turn < num_turns; turn++) {
        const int64_t rows = (p->m - row) / (num_turns - turn);
        switch (rows) {
#define CASE(rows) \
    case rows: multiply_pairs(p, row, start, rows, 1, turn, num_turns); break;
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
            CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#undef CASE
        }
        row += rows;
    }
}

// Few rows over two blocks of outputs whose weights are in the cache.
static void multiply_two_blocks(const struct product *p, int64_t start) {
    switch (p->m) {
#define CASE(rows) \
    case rows: multiply_pairs(p, 0, start, rows, 2, 0, 1); break;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#undef CASE
    }
}

// Blocks first..end of outputs.
static void multiply_in_pairs(const struct product *p, int64_t first, int64_t end) {
    int64_t block = first;
    if (p->is_cached && 2 * p->m <= MOST_ROWS)
        for (; block + 2 <= end; block += 2) multiply_two_blocks(p, block * BLOCK_N);
    for (; block < end; block++) multiply_block(p, block * BLOCK_N);
}
#endif
