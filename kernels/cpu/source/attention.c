// PagedAttention (paper, section 4.1): decoding rows here, chunks of a prompt in chunk.h if there
// are AMX tiles.
#include "attention.h"
#include "chunk.h"

// a chunk this long repays the packing of its keys and values
enum { MIN_CHUNK = 4 };

// memory of one query token: scores and probabilities are [group, stride], sums [group, head_dim]
struct scratch {
    const element **keys;
    float *scores, *sums;
    probability *probs;
    int64_t stride;
};

// Takes one allocation apart; returns the bytes it needs.
static size_t lay_out(struct scratch *s, char *memory, int64_t context_len, int64_t group,
                      int64_t head_dim) {
    s->stride = round_up(context_len, 16);
    const size_t row = (size_t)s->stride, all = row * (size_t)group;
    s->keys = (const element **)memory;
    s->scores = (float *)(s->keys + row);
    s->probs = (probability *)(s->scores + all);
    s->sums = s->scores + 2 * all;
    return (size_t)((char *)(s->sums + group * head_dim) - memory);
}

// One query token and key head: out and q are [group, head_dim], the first `count` tokens visible.
static void attend(element *out, const element *q, const struct pool *pool, int64_t kv_head,
                   int64_t group, int64_t count, const struct scratch *s) {
    const int64_t padded = round_up(count, 4), head_dim = pool->head_dim;
    const int64_t head_size = pool->block_size * head_dim;
    const int64_t to_values = pool->num_kv_heads * head_size;
    const int64_t to_next = kv_head + 1 < pool->num_kv_heads ? head_size - to_values : 0;
    const struct rows keys = {s->keys, kv_head * head_size, to_values};
    const struct rows values = {s->keys, kv_head * head_size + to_values, to_next};
    float inverse[group];
    score(s->scores, q, &keys, group, padded, head_dim, s->stride);
    for (int64_t h = 0; h < group; h++) {
        const int64_t at = h * s->stride;
        inverse[h] = exponentiate(s->probs + at, s->scores + at, 0, count, padded, pool,
                                  kv_head * group + h);
    }
    mix(s->sums, s->probs, &values, group, padded, head_dim, s->stride);
    for (int64_t h = 0; h < group; h++)
        for (int64_t d = 0; d < head_dim; d++)
            out[h * head_dim + d] = narrow(s->sums[h * head_dim + d] * inverse[h]);
}

// Attends token by token; returns 0, or -1 when memory is short.
static int64_t attend_tokens(const struct row *row, const struct pool *pool) {
    const int64_t group = pool->num_heads / pool->num_kv_heads, head_dim = pool->head_dim;
    struct scratch scratch;
    char *memory = malloc(lay_out(&scratch, NULL, row->context_len, group, head_dim));
    if (!memory) return -1;
    lay_out(&scratch, memory, row->context_len, group, head_dim);
    for (int64_t i = 0; i < row->num_new; i++) {
        const int64_t end = row->context_len - (row->num_new - 1 - i);
        const int64_t first = first_seen(pool, end), visible = end - first;
        point_at_keys(scratch.keys, pool, row->table, first, end, round_up(visible, 4));
        for (int64_t kv_head = 0; kv_head < pool->num_kv_heads; kv_head++) {
            const int64_t at = (i * pool->num_heads + kv_head * group) * head_dim;
            attend(row->out + at, row->q + at, pool, kv_head, group, visible, &scratch);
        }
    }
    free(memory);
    return 0;
}

// out and q are [T, num_heads, head_dim]; block_tables [num_rows, max_blocks]. With use_tiles
// chunks go through AMX. Returns 0, or -1 when memory is short.
EXPORT int64_t attention(element *out, const element *q, const element *kv_layer,
                         const int32_t *block_tables, const int32_t *context_lens,
                         const int32_t *query_starts, int64_t num_rows, int64_t max_blocks,
                         int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                         int64_t block_size, int64_t block_stride, float scale, float softcap,
                         int64_t use_tiles, int64_t window, const float *sinks) {
    const struct pool pool = {kv_layer,  num_kv_heads, block_size, head_dim, block_stride,
                              num_heads, scale,        softcap,    window,   sinks};
    int64_t status = 0;
    for (int64_t r = 0; r < num_rows && !status; r++) {
        const int64_t at = query_starts[r] * num_heads * head_dim;
        const struct row row = {out + at, q + at, block_tables + r * max_blocks,
                                query_starts[r + 1] - query_starts[r], context_lens[r]};
        const int in_tiles = use_tiles && row.num_new >= MIN_CHUNK && fits_tiles(&pool);
        status = in_tiles ? attend_chunk(&row, &pool) : attend_tokens(&row, &pool);
    }
    return status;
}
