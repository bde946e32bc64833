// PagedAttention (paper, section 4.1), of tokens that are decoded and of chunks of prompts alike.
//
// The context is met in parts of SPLIT tokens, whose keys and values are packed and then multiplied
// by all queries of a block: those of one key head of some consecutive tokens, each of which is a
// column. Parts begin at multiples of SPLIT and are merged in their order, so that a token's bits do
// not depend on its chunk, on its batch or on the number of threads.
#include "attention_pack.h"
#include "attention_softmax.h"
#include "products.h"
#include "team.h"

enum {
    COLUMNS = 96,      // of a block, which repay the packing
    MOST_PIECES = 256  // that all blocks are cut into for the threads
};

struct attention {
    struct pool pool;
    element *out;
    const element *q;
    const int32_t *block_tables, *context_lens, *query_starts;
    int64_t max_blocks, num_blocks, num_pieces;
    int use_tiles;
};

INLINE int64_t group_of(const struct pool *pool) { return pool->num_heads / pool->num_kv_heads; }

// Tokens whose queries make a block.
INLINE int64_t tokens_of_block(const struct pool *pool) {
    return most_of(1, COLUMNS / group_of(pool));
}

// The number of blocks of a row.
INLINE int64_t blocks_of(const struct pool *pool, int64_t num_new) {
    const int64_t size = tokens_of_block(pool);
    return (num_new + size - 1) / size * pool->num_kv_heads;
}

INLINE struct row row_of(const struct attention *a, int64_t r) {
    const int64_t at = a->query_starts[r] * a->pool.num_heads * a->pool.head_dim;
    return (struct row){a->out + at, a->q + at, a->block_tables + r * a->max_blocks,
                        a->query_starts[r + 1] - a->query_starts[r], a->context_lens[r]};
}

// queries first..end of a row, with the heads that share one key head
struct block {
    struct row row;
    int64_t first, end, kv_head;
};

// memory of one block: packed keys and values [SPLIT, depth], queries [columns, depth], probs and
// scores [columns, SPLIT], sums of a part and of all [columns, depth]; depth is head_dim, padded by
// zeros to a multiple of 32. Tokens are those of a part and of the next one.
struct scratch {
    operand *keys, *values, *queries, *probs;
    float *scores, *part, *sums;
    struct seen *seen;
    const element **tokens, **next;
    int64_t depth;
};

INLINE void *take(char **memory, int64_t count, size_t bytes) {
    char *const at = *memory;
    *memory += round_up(count * (int64_t)bytes, 64);
    return at;
}

// Takes one allocation apart; returns the bytes needed.
static size_t lay_out(struct scratch *s, char *memory, int64_t columns, int64_t head_dim) {
    char *at = memory;
    s->depth = round_up(head_dim, 32);
    s->keys = take(&at, SPLIT * s->depth, sizeof *s->keys);
    s->values = take(&at, SPLIT * s->depth, sizeof *s->values);
    s->queries = take(&at, columns * s->depth, sizeof *s->queries);
    s->probs = take(&at, columns * SPLIT, sizeof *s->probs);
    s->scores = take(&at, columns * SPLIT, sizeof *s->scores);
    s->part = take(&at, columns * s->depth, sizeof *s->part);
    s->sums = take(&at, columns * s->depth, sizeof *s->sums);
    s->seen = take(&at, columns, sizeof *s->seen);
    s->tokens = take(&at, SPLIT, sizeof *s->tokens);
    s->next = take(&at, SPLIT, sizeof *s->next);
    return (size_t)(at - memory);
}

// Where the query and the result of a column lie.
INLINE int64_t place_of(const struct pool *pool, const struct block *block, int64_t column) {
    const int64_t group = group_of(pool), token = block->first + column / group;
    return (token * pool->num_heads + block->kv_head * group + column % group) * pool->head_dim;
}

static void take_queries(const struct pool *pool, const struct block *block, int64_t columns,
                         const struct scratch *s) {
    for (int64_t c = 0; c < columns; c++) {
        const element *const query = block->row.q + place_of(pool, block, c);
        operand *const taken = s->queries + c * s->depth;
        for (int64_t d = 0; d < pool->head_dim; d++) taken[d] = operand_of(query[d]);
        for (int64_t d = pool->head_dim; d < s->depth; d++) taken[d] = 0;
    }
}

// Scores, probabilities and sums of the part of the context from `start` on, of which the block sees
// tokens low..high: *next has where its keys lie, and gets those of the part behind.
static void attend_part(const struct attention *a, const struct block *block, int64_t columns,
                        int64_t low, int64_t high, const struct tokens *keys,
                        const struct tokens *values, const struct scratch *s) {
    const struct pool *const pool = &a->pool;
    const int64_t begin = low / BLOCK_N * BLOCK_N, count = round_up(high - begin, BLOCK_N);
    const int64_t depth = s->depth, group = group_of(pool);
    const int64_t position = block->row.context_len - block->row.num_new + block->first;
    struct seen seen[columns];
    pack_keys(s->keys, keys, count, pool->head_dim, depth);
    const struct product scores = {s->scores, 1, 1, s->queries, s->keys, NULL, columns, count, depth,
                                   SPLIT, depth};
    multiply_blocks(&scores, 0, count / BLOCK_N, a->use_tiles);
    if (pool->softcap > 0)
        for (int64_t c = 0; c < columns; c++) cap(s->scores + c * SPLIT, count, pool);
    for (int64_t c = 0; c < columns; c++) {
        const int64_t end = position + c / group + 1;
        const int64_t first = most_of(low, first_seen(pool, end)) - begin;
        seen[c] = exponentiate(s->probs + c * SPLIT, s->scores + c * SPLIT, first,
                               least_of(high, end) - begin, count, scale_of(pool));
    }
    pack_values(s->values, values, count, pool->head_dim, depth);
    const struct product sums = {s->part, 1, 1, s->probs, s->values, NULL, columns, depth, count,
                                 depth, SPLIT};
    multiply_blocks(&sums, 0, depth / BLOCK_N, a->use_tiles);
    for (int64_t c = 0; c < columns; c++)
        if (seen[c].total > 0)
            merge(s->seen + c, s->sums + c * depth, seen[c], s->part + c * depth, depth,
                  scale_of(pool));
}

// Adds the sinks, divides and rounds.
static void finish(const struct attention *a, const struct block *block, int64_t columns,
                   const struct scratch *s) {
    const struct pool *const pool = &a->pool;
    const float scale = scale_of(pool);
    for (int64_t c = 0; c < columns; c++) {
        const float *const sums = s->sums + c * s->depth;
        element *const out = block->row.out + place_of(pool, block, c);
        float factor = 1.0f / s->seen[c].total;
        if (pool->sinks) {
            const int64_t head = block->kv_head * group_of(pool) + c % group_of(pool);
            // in units of the scores
            const float sink = pool->sinks[head] / scale, top = fmaxf(s->seen[c].top, sink);
            const float before = fast_exp((s->seen[c].top - top) * scale);
            factor = before / (s->seen[c].total * before + fast_exp((sink - top) * scale));
        }
        for (int64_t d = 0; d < pool->head_dim; d++) out[d] = narrow(sums[d] * factor);
    }
}

static void attend_block(const struct attention *a, const struct block *block,
                         const struct scratch *s) {
    const struct pool *const pool = &a->pool;
    const struct row *const row = &block->row;
    const int64_t columns = (block->end - block->first) * group_of(pool);
    const int64_t behind = row->context_len - row->num_new;
    const int64_t first = first_seen(pool, behind + block->first + 1), end = behind + block->end;
    const int64_t head_size = pool->block_size * pool->head_dim;
    const int64_t to_keys = block->kv_head * head_size;
    const int64_t to_values = to_keys + pool->num_kv_heads * head_size;
    const element **here = s->tokens, **there = s->next;
    take_queries(pool, block, columns, s);
    memset(s->sums, 0, (size_t)(columns * s->depth) * sizeof *s->sums);
    for (int64_t c = 0; c < columns; c++) s->seen[c] = (struct seen){LOWEST, 0};
    if (a->use_tiles) begin_tiles(columns);
    point_at_keys(here, pool, row->table, first, end);
    for (int64_t low = first, high; low < end; low = high) {
        high = least_of(low / SPLIT * SPLIT + SPLIT, end);
        // values are needed after the keys of a part, then the keys of the next part or head
        struct tokens keys = {here, here, to_keys, to_values};
        struct tokens values = {here, here, to_values, to_keys};
        if (high < end) {
            point_at_keys(there, pool, row->table, high, end);
            values.next = there;
        } else if (block->kv_head + 1 < pool->num_kv_heads) {
            values.next_shift += head_size;
        }
        attend_part(a, block, columns, low, high, &keys, &values, s);
        const element **const swap = here;
        here = there, there = swap;
    }
    if (a->use_tiles) end_tiles();
    finish(a, block, columns, s);
}

// Takes one of equal pieces of all blocks: those of a row by token, then by key head.
static void attend_piece(const void *argument, struct team *team, int64_t piece, int64_t thread) {
    const struct attention *const a = argument;
    const struct pool *const pool = &a->pool;
    const int64_t size = tokens_of_block(pool);
    int64_t left = a->num_blocks * piece / a->num_pieces;
    int64_t wanted = a->num_blocks * (piece + 1) / a->num_pieces - left;
    struct scratch s;
    const int64_t columns = size * group_of(pool);
    char *const memory = scratch_of(team, thread, lay_out(&s, NULL, columns, pool->head_dim));
    if (!memory) return;
    lay_out(&s, memory, columns, pool->head_dim);
    for (int64_t r = 0; wanted; r++) {
        const struct row row = row_of(a, r);
        const int64_t num_blocks = blocks_of(pool, row.num_new);
        for (; left < num_blocks && wanted; left++, wanted--) {
            const int64_t first = left / pool->num_kv_heads * size;
            const struct block block = {row, first, least_of(first + size, row.num_new),
                                        left % pool->num_kv_heads};
            attend_block(a, &block, &s);
        }
        left -= num_blocks;
    }
}

// out and q are [T, num_heads, head_dim]; block_tables [num_rows, max_blocks]. Returns 0, or -1 when
// memory is short.
EXPORT int64_t attention(struct team *team, element *out, const element *q, const element *kv_layer,
                         const int32_t *block_tables, const int32_t *context_lens,
                         const int32_t *query_starts, int64_t num_rows, int64_t max_blocks,
                         int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                         int64_t block_size, int64_t block_stride, float scale, float softcap,
                         int64_t use_tiles, int64_t window, const float *sinks) {
    struct attention a = {
        .pool = {kv_layer, num_kv_heads, block_size, head_dim, block_stride, num_heads, scale,
                 softcap, window, sinks},
        .out = out, .q = q, .block_tables = block_tables, .context_lens = context_lens,
        .query_starts = query_starts, .max_blocks = max_blocks, .use_tiles = use_tiles != 0};
    for (int64_t r = 0; r < num_rows; r++)
        a.num_blocks += blocks_of(&a.pool, query_starts[r + 1] - query_starts[r]);
    a.num_pieces = least_of(a.num_blocks, MOST_PIECES);
    share(team, attend_piece, &a, a.num_pieces);
    return is_short(team) ? -1 : 0;
}
