// What both ways of attending share: the shape of the pool, where keys lie, and the softmax.
#pragma once

#include "dot.h"

// kv_layer is [num_blocks, 2, num_kv_heads, block_size, head_dim], blocks block_stride apart
struct pool {
    const element *kv_layer;
    int64_t num_kv_heads, block_size, head_dim, block_stride;
    int64_t num_heads;
    // scores s become softcap * tanh(s / softcap); 0 for none
    float scale, softcap;
};

// one sequence: token i of out and q [num_new, num_heads, head_dim] sees all tokens of the context
// but the last num_new - 1 - i
struct row {
    element *out;
    const element *q;
    const int32_t *table;
    int64_t num_new, context_len;
};

INLINE int64_t round_up(int64_t x, int64_t multiple) {
    return (x + multiple - 1) / multiple * multiple;
}

// Points at the keys 0..count of the first key head. Pads with the last one, so that nothing beyond
// the context is read.
static void point_at_keys(const element **keys, const struct pool *pool, const int32_t *table,
                          int64_t count, int64_t padded) {
    for (int64_t t = 0; t < count;) {
        const element *key = pool->kv_layer + *table++ * pool->block_stride;
        const int64_t end = t + pool->block_size < count ? t + pool->block_size : count;
        for (; t < end; t++, key += pool->head_dim) keys[t] = key;
    }
    for (int64_t t = count; t < padded; t++) keys[t] = keys[count - 1];
}

// probs = exp(scale * (scores - max)), 0 from count on, of scores that are capped first; returns
// 1 / their sum.
INLINE float exponentiate(probability *restrict probs, float *restrict scores, int64_t count,
                          int64_t padded, float scale, float softcap) {
    if (softcap > 0) {
        // tanh(x) = 1 - 2 / (exp(2 x) + 1)
        for (int64_t t = 0; t < count; t++)
            scores[t] = 1.0f - 2.0f / (fast_exp(2.0f * scale / softcap * scores[t]) + 1.0f);
        scale = softcap;
    }
    float top = scores[0];
    for (int64_t t = 1; t < count; t++) top = fmaxf(top, scores[t]);
    float sum = 0;
    for (int64_t t = 0; t < count; t++) {
        scores[t] = fast_exp((scores[t] - top) * scale);
        sum += scores[t];
    }
    for (int64_t t = 0; t < count; t++) probs[t] = to_probability(scores[t]);
    for (int64_t t = count; t < padded; t++) probs[t] = 0;
    return 1.0f / sum;
}
