// Product with packed operands in plain loops that the compiler vectorises.
#pragma once

#include "linear.h"

#ifndef HAS_PAIRS

enum { ROWS_AT_ONCE = 4 };  // whose sums over one block of outputs fit the registers

// Sums of `rows` rows from `row` on over one block of outputs.
INLINE void multiply_rows(const struct product *p, int64_t row, int64_t block, const int rows) {
    const operand *const x = p->x + row * p->x_stride, *weights = p->packed + block * BLOCK_N * p->k;
    float sums[ROWS_AT_ONCE][BLOCK_N] = {0};
    for (int64_t i = 0; i < p->k; i++, weights += BLOCK_N)
        for (int r = 0; r < rows; r++) {
            const float input = x[r * p->x_stride + i];
            for (int j = 0; j < BLOCK_N; j++) sums[r][j] += input * weights[j];
        }
    for (int r = 0; r < rows; r++)
        memcpy((float *)p->out + (row + r) * p->out_stride + block * BLOCK_N, sums[r],
               sizeof sums[r]);
}

// Blocks first..end of outputs.
static void multiply_plainly(const struct product *p, int64_t first, int64_t end) {
    for (int64_t block = first; block < end; block++) {
        int64_t row = 0;
        for (; row + ROWS_AT_ONCE <= p->m; row += ROWS_AT_ONCE)
            multiply_rows(p, row, block, ROWS_AT_ONCE);
        for (; row < p->m; row++) multiply_rows(p, row, block, 1);
    }
}
#endif
