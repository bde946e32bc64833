// What all ways of multiplying by packed operands share: weights of linear layers, and keys and
// values of attention.
#pragma once

#include "vectors.h"

enum {
    BLOCK_N = 32,            // outputs of one block of packed weights
    STEP_K = 32,             // inputs of one step
    STEP = BLOCK_N * STEP_K  // elements of one block's step
};

#ifdef HAS_PAIRS
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
// Adds the bias to a vector of sums and stores them from out[row, start] on, as far as there are
// outputs.
INLINE void store_sums(const struct product *p, int64_t row, int64_t start, floats sums) {
    const int64_t left = p->n - start, at = row * p->out_stride + start;
    if (left <= 0) return;
    if (p->bias) sums += widened_at(p->bias + start, left);
    if (p->is_wide)
        store_floats((float *)p->out + at, sums, left);
    else
        store_narrow((element *)p->out + at, sums, left);
}
#endif
