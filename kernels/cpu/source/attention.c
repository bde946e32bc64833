// PagedAttention (paper, section 4.1) for decoding rows and prefill chunks alike: one query token
// after the other, all query heads of a key head together.
#include "dot.h"

// what one call shares; kv_layer is [num_blocks, 2, num_kv_heads, block_size, head_dim]
struct pool {
    const element *kv_layer;
    int64_t num_kv_heads, block_size, head_dim, block_stride;
};

// memory of one query token: scores and probabilities are [group, padded], sums [group, head_dim]
struct scratch {
    const element **rows;
    float *scores, *sums;
    probability *probs;
    int64_t padded;
};

INLINE int64_t pad(int64_t count) { return (count + 3) & ~(int64_t)3; }

// Points at the keys 0..count of the first key head. Pads to a multiple of four with the last one,
// so that nothing beyond the context is read.
static void point_at_keys(const element **rows, const struct pool *pool, const int32_t *table,
                          int64_t count, int64_t padded) {
    for (int64_t t = 0; t < count;) {
        const element *row = pool->kv_layer + *table++ * pool->block_stride;
        const int64_t end = t + pool->block_size < count ? t + pool->block_size : count;
        for (; t < end; t++, row += pool->head_dim) rows[t] = row;
    }
    for (int64_t t = count; t < padded; t++) rows[t] = rows[count - 1];
}

// probs = exp(scale * (scores - max)), 0 from count on; returns 1 / their sum.
INLINE float exponentiate(probability *restrict probs, float *restrict scores, int64_t count,
                          int64_t padded, float scale) {
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

// One query token and key head: out and q are [group, head_dim], the first `count` tokens visible.
static void attend(element *out, const element *q, const struct pool *pool, int64_t kv_head,
                   int64_t group, int64_t count, float scale, const struct scratch *s) {
    const int64_t padded = pad(count), head_dim = pool->head_dim;
    const int64_t head_size = pool->block_size * head_dim;
    const int64_t to_values = pool->num_kv_heads * head_size;
    const int64_t to_next = kv_head + 1 < pool->num_kv_heads ? head_size - to_values : 0;
    const struct rows keys = {s->rows, kv_head * head_size, to_values};
    const struct rows values = {s->rows, kv_head * head_size + to_values, to_next};
    float inverse[group];
    score(s->scores, q, &keys, group, padded, head_dim, s->padded);
    for (int64_t h = 0; h < group; h++)
        inverse[h] = exponentiate(s->probs + h * s->padded, s->scores + h * s->padded, count, padded,
                                  scale);
    mix(s->sums, s->probs, &values, group, padded, head_dim, s->padded);
    for (int64_t h = 0; h < group; h++)
        for (int64_t d = 0; d < head_dim; d++)
            out[h * head_dim + d] = narrow(s->sums[h * head_dim + d] * inverse[h]);
}

// out and q are [T, num_heads, head_dim]; block_tables [num_rows, max_blocks].
// Returns 0, or -1 when memory is short.
EXPORT int64_t attention(element *out, const element *q, const element *kv_layer,
                         const int32_t *block_tables, const int32_t *context_lens,
                         const int32_t *query_starts, int64_t num_rows, int64_t max_blocks,
                         int64_t max_context_len, int64_t num_heads, int64_t num_kv_heads,
                         int64_t head_dim, int64_t block_size, int64_t block_stride, float scale) {
    const struct pool pool = {kv_layer, num_kv_heads, block_size, head_dim, block_stride};
    const int64_t group = num_heads / num_kv_heads, padded = (max_context_len + 15) & ~(int64_t)15;
    const size_t row_bytes = (size_t)padded * sizeof(element *);
    const size_t score_bytes = (size_t)(group * padded) * sizeof(float);
    char *memory = malloc(row_bytes + 2 * score_bytes + (size_t)(group * head_dim) * sizeof(float));
    if (!memory) return -1;
    const struct scratch scratch = {
        .rows = (const element **)memory,
        .scores = (float *)(memory + row_bytes),
        .probs = (probability *)(memory + row_bytes + score_bytes),
        .sums = (float *)(memory + row_bytes + 2 * score_bytes),
        .padded = padded,
    };
    for (int64_t row = 0; row < num_rows; row++) {
        const int64_t end = query_starts[row + 1];
        for (int64_t token = query_starts[row]; token < end; token++) {
            const int64_t visible = context_lens[row] - (end - 1 - token);
            point_at_keys(scratch.rows, &pool, block_tables + row * max_blocks, visible, pad(visible));
            for (int64_t kv_head = 0; kv_head < num_kv_heads; kv_head++) {
                const int64_t at = (token * num_heads + kv_head * group) * head_dim;
                attend(out + at, q + at, &pool, kv_head, group, visible, scale, &scratch);
            }
        }
    }
    free(memory);
    return 0;
}
