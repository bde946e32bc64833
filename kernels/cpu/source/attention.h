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

// Points at the keys first..end of the first key head. Pads with the last one up to `padded` keys,
// so that nothing beyond the context is read.
static void point_at_keys(const element **keys, const struct pool *pool, const int32_t *table,
                          int64_t first, int64_t end, int64_t padded) {
    const int64_t count = end - first;
    table += first / pool->block_size;
    int64_t offset = first % pool->block_size;
    for (int64_t t = 0; t < count; offset = 0) {
        const element *key =
            pool->kv_layer + *table++ * pool->block_stride + offset * pool->head_dim;
        const int64_t left = pool->block_size - offset, stop = t + left < count ? t + left : count;
        for (; t < stop; t++, key += pool->head_dim) keys[t] = key;
    }
    for (int64_t t = count; t < padded; t++) keys[t] = keys[count - 1];
}

// probs = exp(scale * (scores - max)) from first to count and 0 elsewhere, of scores that are capped
// first; returns 1 / the sum of these and of the sink's.
INLINE float exponentiate(probability *restrict probs, float *restrict scores, int64_t first,
                          int64_t count, int64_t padded, const struct pool *pool, int64_t head) {
    float scale = pool->scale;
    const float softcap = pool->softcap;
    if (softcap > 0) {
        // tanh(x) = 1 - 2 / (exp(2 x) + 1)
        for (int64_t t = first; t < count; t++)
            scores[t] = 1.0f - 2.0f / (fast_exp(2.0f * scale / softcap * scores[t]) + 1.0f);
        scale = softcap;
    }
    float top = scores[first];
    for (int64_t t = first + 1; t < count; t++) top = fmaxf(top, scores[t]);
    // the sink in units of the scores
    const float sink = pool->sinks ? pool->sinks[head] / scale : 0;
    if (pool->sinks) top = fmaxf(top, sink);
    float sum = pool->sinks ? fast_exp((sink - top) * scale) : 0;
    for (int64_t t = first; t < count; t++) {
        scores[t] = fast_exp((scores[t] - top) * scale);
        sum += scores[t];
    }
    for (int64_t t = 0; t < first; t++) probs[t] = 0;
    for (int64_t t = first; t < count; t++) probs[t] = to_probability(scores[t]);
    for (int64_t t = count; t < padded; t++) probs[t] = 0;
    return 1.0f / sum;
}
