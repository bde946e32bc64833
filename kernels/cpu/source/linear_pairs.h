// Product with packed weights in vectors: pairs of inputs are multiplied and summed in float.
//
// Outputs go by units of two vectors: a block of 32 in AVX-512, half a block in AVX2.
#pragma once

#include "linear.h"

#ifdef HAS_PAIRS

enum {
    UNIT = 2 * VECTOR,          // outputs
    UNITS = BLOCK_N / UNIT,     // of a block
    MOST_ROWS = MOST_SUMS / 2,  // whose sums over a unit fit the registers
    FEW_ROWS = MOST_ROWS / 2,   // whose sums over two units do
    STEPS_AHEAD = 8             // 16 KiB
};

// Asks for a step of weights that follows: it is too far for the hardware to foresee.
INLINE void prefetch_step(const element *packed) {
    for (int64_t i = 0; i < STEP; i += 32) _mm_prefetch(packed + i, _MM_HINT_T1);
}

// Sums of `rows` rows from `row` on over `units` units of outputs from `start` on; more rows or
// units hide the latency of a sum. The first of `num_turns` turns over a block finds its weights in
// the cache if those over the block before share the work of asking for them; a turn that is the only
// one asks for its own.
INLINE void multiply_pairs(const struct product *p, int64_t row, int64_t start, const int rows,
                           const int units, int64_t turn, int64_t num_turns) {
    // pairs of 16 outputs, which are half a block, follow each other
    const int64_t second = UNITS == 1 ? STEP / 2 : 2 * VECTOR;
    const int64_t next_unit = UNITS == 1 ? BLOCK_N * p->k : STEP / 2;
    const element *const x = p->x + row * p->x_stride;
    const element *const packed =
        p->packed + start / BLOCK_N * BLOCK_N * p->k + start % BLOCK_N / UNIT * (STEP / UNITS);
    const int is_asking = !p->is_cached;
    const int64_t ahead = num_turns == 1 ? STEPS_AHEAD * STEP : BLOCK_N * p->k;
    floats sums[MOST_SUMS];
    // every loop over the sums is unrolled, or else they stay in memory
#pragma GCC unroll 24
    for (int i = 0; i < 2 * rows * units; i++) sums[i] = (floats){0};
    for (int64_t step = 0; step < p->k / STEP_K; step++) {
        const element *const weights = packed + step * STEP, *inputs = x + step * STEP_K;
        if (is_asking && step % num_turns == turn) prefetch_step(weights + ahead);
        for (int pair = 0; pair < STEP_K / 2; pair++) {
#pragma GCC unroll 2
            for (int phase = 0; phase < PHASES; phase++) {
                // inputs are read again by each phase: there are no registers to keep them
                if (PHASES > 1) __asm__("" : "+r"(inputs));
                factors weight[4];
#pragma GCC unroll 4
                for (int v = 0; v < 2 * units; v++) {
                    const element *const at = weights + v / 2 * next_unit + v % 2 * second;
                    weight[v] = factors_of(words_at(at + pair * 32), phase);
                }
#pragma GCC unroll 12
                for (int r = 0; r < rows; r++) {
                    const element *const at = inputs + r * p->x_stride + pair * 2;
                    const factors input = factors_of(spread_pair(at), phase);
#pragma GCC unroll 4
                    for (int v = 0; v < 2 * units; v++) {
                        const int i = r * 2 * units + v;
                        sums[i] = add_products(sums[i], weight[v], input);
                    }
                }
            }
        }
    }
#pragma GCC unroll 24
    for (int i = 0; i < 2 * rows * units; i++)
        store_sums(p, row + i / (2 * units), start + i % (2 * units) * VECTOR, sums[i]);
}

// All rows over a unit of a block of outputs, as many at a time as the registers hold.
static void multiply_unit(const struct product *p, int64_t start, int64_t unit) {
    const int64_t num_turns = (p->m + MOST_ROWS - 1) / MOST_ROWS;
    int64_t row = 0;
    for (int64_t turn = 0; turn < num_turns; turn++) {
        const int64_t rows = (p->m - row) / (num_turns - turn);
        switch (rows) {
#define CASE(rows)                                                              \
    case rows:                                                                  \
        multiply_pairs(p, row, start, rows, 1, unit * num_turns + turn,         \
                       UNITS * num_turns);                                      \
        break;
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#ifdef HAS_WIDE_VECTORS
            CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
#undef CASE
        }
        row += rows;
    }
}

// Few rows over two units of outputs.
static void multiply_two_units(const struct product *p, int64_t start) {
    switch (p->m) {
#define CASE(rows) \
    case rows: multiply_pairs(p, 0, start, rows, 2, 0, 1); break;
        CASE(1) CASE(2) CASE(3)
#ifdef HAS_WIDE_VECTORS
        CASE(4) CASE(5) CASE(6)
#endif
#undef CASE
    }
}

// Blocks first..end of outputs. Two units that are two blocks are read at once from a cache only.
static void multiply_in_pairs(const struct product *p, int64_t first, int64_t end) {
    int64_t start = first * BLOCK_N;
    const int64_t stop = end * BLOCK_N;
    if (p->m <= FEW_ROWS && (UNITS == 2 || p->is_cached))
        for (; start + 2 * UNIT <= stop; start += 2 * UNIT) multiply_two_units(p, start);
    for (; start < stop; start += UNIT) multiply_unit(p, start, start % BLOCK_N / UNIT);
}
#endif
