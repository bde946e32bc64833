// Attention of many query tokens over one key head on AMX tiles, for prefill.
//
// Keys and values are packed into tiles once, then met by 16 queries at a time: all heads of the
// group of consecutive tokens. A query's sums run in order of position, whatever its chunk.
#pragma once

#include "attention.h"
#include "tiles.h"

#ifdef HAS_TILES

// packed keys [tokens / 16, depth / 32, 16 pairs of dimensions, 16 tokens, 2], packed values
// [tokens / 32, depth / 16, 16 pairs of tokens, 16 dimensions, 2]; depth is head_dim, padded by
// zeros to a multiple of 32, and tokens are those of the context from `base` on, padded likewise
struct chunk {
    const element **rows;
    element *keys, *values, *queries;
    probability *probs;
    float *scores, *sums;
    int64_t base, tokens, depth;
};

// Takes one allocation apart; returns the bytes needed. Every part but the last is a multiple of 64
// bytes.
INLINE size_t lay_out_chunk(struct chunk *c, char *memory, int64_t num_tokens, int64_t head_dim) {
    c->tokens = round_up(num_tokens, 32);
    c->depth = round_up(head_dim, 32);
    const size_t plane = (size_t)(c->tokens * c->depth) * sizeof(element);
    const size_t columns = TILE_ROWS;
    char *at = memory;
    c->keys = (element *)at, at += plane;
    c->values = (element *)at, at += plane;
    c->queries = (element *)at, at += columns * (size_t)c->depth * sizeof(element);
    c->probs = (probability *)at, at += columns * (size_t)c->tokens * sizeof(probability);
    c->scores = (float *)at, at += columns * (size_t)c->tokens * sizeof(float);
    c->sums = (float *)at, at += columns * (size_t)c->depth * sizeof(float);
    c->rows = (const element **)at, at += (size_t)c->tokens * sizeof(element *);
    return (size_t)(at - memory);
}

// keys of rows[start..count], each at `shift`; zeros before
INLINE void pack_keys(const struct chunk *c, int64_t shift, int64_t start, int64_t count,
                      int64_t head_dim) {
    memset(c->keys, 0, (size_t)(c->tokens * c->depth) * sizeof(element));
    for (int64_t t = start; t < count; t++) {
        element *tile = c->keys + t / 16 * 16 * c->depth + t % 16 * 2;
        const element *row = c->rows[t] + shift;
        for (int64_t d = 0; d < head_dim; d += 2)
            memcpy(tile + d * 16, row + d, 2 * sizeof(element));
    }
}

INLINE void pack_values(const struct chunk *c, int64_t shift, int64_t start, int64_t count,
                        int64_t head_dim) {
    memset(c->values, 0, (size_t)(c->tokens * c->depth) * sizeof(element));
    for (int64_t t = start; t < count; t++) {
        element *tile = c->values + t / 32 * 32 * c->depth + t % 32 / 2 * TILE_K + t % 2;
        const element *row = c->rows[t] + shift;
        for (int64_t d = 0; d < head_dim; d++) tile[d / 16 * TILE_SIZE + d % 16 * 2] = row[d];
    }
}

// scores [16, tokens] = queries [16, depth] . keys, for tokens start..count; start is a multiple of
// 32
INLINE void score_chunk(const struct chunk *c, int64_t start, int64_t count) {
    const element *keys = c->keys + start * c->depth;
    for (int64_t t = start; t < count; t += 32, keys += 32 * c->depth) {
        _tile_zero(0);
        _tile_zero(1);
        for (int64_t d = 0; d < c->depth; d += TILE_K) {
            _tile_loadd(4, c->queries + d, c->depth * (int64_t)sizeof(element));
            _tile_loadd(6, keys + d * 16, 64);
            _tile_loadd(7, keys + 16 * c->depth + d * 16, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
        }
        _tile_stored(0, c->scores + t, c->tokens * (int64_t)sizeof(float));
        _tile_stored(1, c->scores + t + 16, c->tokens * (int64_t)sizeof(float));
    }
}

// sums [16, depth] = probs [16, tokens] . values, over tokens start..count
INLINE void mix_chunk(const struct chunk *c, int64_t start, int64_t count) {
    for (int64_t d = 0; d < c->depth; d += 32) {
        const element *values = c->values + start * c->depth + d * TILE_K;
        _tile_zero(0);
        _tile_zero(1);
        for (int64_t t = start; t < count; t += TILE_K, values += TILE_K * c->depth) {
            _tile_loadd(4, c->probs + t, c->tokens * (int64_t)sizeof(probability));
            _tile_loadd(6, values, 64);
            _tile_loadd(7, values + TILE_SIZE, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
        }
        _tile_stored(0, c->sums + d, c->depth * (int64_t)sizeof(float));
        _tile_stored(1, c->sums + d + 16, c->depth * (int64_t)sizeof(float));
    }
}

// Queries [first, end) of a row and one key head, over packed keys and values.
INLINE void attend_block(const struct row *row, const struct pool *pool, const struct chunk *c,
                         int64_t first, int64_t end, int64_t kv_head) {
    const int64_t group = pool->num_heads / pool->num_kv_heads, head_dim = pool->head_dim;
    const int64_t num_queries = (end - first) * group;
    const int64_t behind = row->context_len - row->num_new;
    const int64_t seen = first_seen(pool, behind + first + 1) - c->base;
    const int64_t start = seen / TILE_K * TILE_K, visible = behind + end - c->base;
    const int64_t padded = round_up(visible, TILE_K);
    for (int64_t i = 0; i < num_queries; i++) {
        const int64_t head = (first + i / group) * pool->num_heads + kv_head * group + i % group;
        memcpy(c->queries + i * c->depth, row->q + head * head_dim,
               (size_t)head_dim * sizeof(element));
    }
    score_chunk(c, start, visible);
    float inverse[TILE_ROWS];
    for (int64_t i = 0; i < num_queries; i++) {
        const int64_t count = behind + first + i / group + 1, at = i * c->tokens;
        inverse[i] = exponentiate(c->probs + at, c->scores + at,
                                  first_seen(pool, count) - c->base, count - c->base, padded,
                                  pool, kv_head * group + i % group);
    }
    mix_chunk(c, start, visible);
    for (int64_t i = 0; i < num_queries; i++) {
        const int64_t head = (first + i / group) * pool->num_heads + kv_head * group + i % group;
        for (int64_t d = 0; d < head_dim; d++)
            row->out[head * head_dim + d] = narrow(c->sums[i * c->depth + d] * inverse[i]);
    }
}

// Attends a chunk of a prompt; returns 0, or -1 when memory is short.
static int64_t attend_chunk(const struct row *row, const struct pool *pool) {
    const int64_t head_dim = pool->head_dim, head_size = pool->block_size * head_dim;
    const int64_t at_once = TILE_ROWS * pool->num_kv_heads / pool->num_heads;
    const int64_t seen = first_seen(pool, row->context_len - row->num_new + 1);
    // tiles begin at multiples of their length, so that sums do not depend on the chunk
    struct chunk c = {.base = seen / 32 * 32};
    const int64_t num_tokens = row->context_len - c.base, start = seen - c.base;
    const size_t size = lay_out_chunk(&c, NULL, num_tokens, head_dim);
    char *memory = aligned_alloc(64, (size_t)round_up((int64_t)size, 64));
    if (!memory) return -1;
    lay_out_chunk(&c, memory, num_tokens, head_dim);
    // rows of queries and probabilities that no query fills are multiplied too
    memset(c.queries, 0, (size_t)((char *)c.scores - (char *)c.queries));
    point_at_keys(c.rows, pool, row->table, c.base, row->context_len, num_tokens);
    configure_tiles(TILE_ROWS, TILE_ROWS);
    for (int64_t kv_head = 0; kv_head < pool->num_kv_heads; kv_head++) {
        pack_keys(&c, kv_head * head_size, start, num_tokens, head_dim);
        pack_values(&c, (pool->num_kv_heads + kv_head) * head_size, start, num_tokens, head_dim);
        for (int64_t first = 0; first < row->num_new; first += at_once) {
            const int64_t end = first + at_once < row->num_new ? first + at_once : row->num_new;
            attend_block(row, pool, &c, first, end, kv_head);
        }
    }
    _tile_release();
    free(memory);
    return 0;
}

INLINE int fits_tiles(const struct pool *pool) {
    return pool->num_heads / pool->num_kv_heads <= TILE_ROWS;
}
#else
INLINE int64_t attend_chunk(const struct row *row, const struct pool *pool) {
    return (void)row, (void)pool, -1;
}

INLINE int fits_tiles(const struct pool *pool) { return (void)pool, 0; }
#endif
