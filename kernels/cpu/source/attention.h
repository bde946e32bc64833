// What attention takes: the shape of the pool, one sequence, and where keys lie.
#pragma once

#include "linear.h"

enum { SPLIT = 128 };  // tokens of a part of the context

// kv_layer is [num_blocks, 2, num_kv_heads, block_size, head_dim], blocks block_stride apart
struct pool {
    const element *kv_layer;
    int64_t num_kv_heads, block_size, head_dim, block_stride;
    int64_t num_heads;
    // scores s become softcap * tanh(s / softcap); 0 for none
    float scale, softcap;
    // tokens that one sees, the last of which is itself; 0 for all
    int64_t window;
    // [num_heads] scores of something without a value; null for none
    const float *sinks;
};

// one sequence: token i of out and q [num_new, num_heads, head_dim] sees all tokens of the context
// but the last num_new - 1 - i
struct row {
    element *out;
    const element *q;
    const int32_t *table;
    int64_t num_new, context_len;
};

// The first of the tokens that one sees which is the last of `count`.
INLINE int64_t first_seen(const struct pool *pool, int64_t count) {
    return pool->window && count > pool->window ? count - pool->window : 0;
}

INLINE int64_t round_up(int64_t x, int64_t multiple) {
    return (x + multiple - 1) / multiple * multiple;
}

INLINE int64_t most_of(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }

// Points at the keys of the first key head of the tokens of a sequence, from the last multiple of 32
// before `first` on, up to the next multiple of SPLIT. Only tokens first..end are read: those before
// are replaced by the first of them, those behind by the last.
static void point_at_keys(const element **keys, const struct pool *pool, const int32_t *table,
                          int64_t first, int64_t end) {
    const int64_t start = first / BLOCK_N * BLOCK_N;
    const int64_t count = first / SPLIT * SPLIT + SPLIT - start, behind = least_of(end - start, count);
    int64_t t = first - start;
    while (t < behind) {
        const int64_t block = (start + t) / pool->block_size, place = (start + t) % pool->block_size;
        const element *key =
            pool->kv_layer + table[block] * pool->block_stride + place * pool->head_dim;
        const int64_t stop = least_of(t + pool->block_size - place, behind);
        for (; t < stop; t++, key += pool->head_dim) keys[t] = key;
    }
    for (; t < count; t++) keys[t] = keys[behind - 1];
    for (t = 0; t < first - start; t++) keys[t] = keys[first - start];
}
