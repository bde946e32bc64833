// What attention takes, and the order in which a thread goes through it: blocks of queries, parts of
// the context that a block sees, memory that these lie in.
#pragma once

#include "linear.h"

enum {
    SPLIT = 128,  // tokens of a part of the context; parts begin at multiples of it
    COLUMNS = 96  // queries of a block, which repay the packing of keys and values
};

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

struct attention {
    struct pool pool;
    element *out;
    const element *q;
    const int32_t *block_tables, *context_lens, *query_starts;
    int64_t max_blocks, num_blocks, num_pieces;
    // of a block of one query
    int64_t heads_at_once;
    int use_tiles;
};

// queries of tokens first..end of a row that share key heads kv_first..kv_end; together they see
// tokens seen..visible of the context
struct block {
    struct row row;
    int64_t first, end, kv_first, kv_end, seen, visible;
};

INLINE int64_t round_up(int64_t x, int64_t multiple) {
    return (x + multiple - 1) / multiple * multiple;
}

INLINE int64_t most_of(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }

INLINE int64_t group_of(const struct pool *pool) { return pool->num_heads / pool->num_kv_heads; }

// The first of the tokens that one sees which is the last of `count`.
INLINE int64_t first_seen(const struct pool *pool, int64_t count) {
    return pool->window && count > pool->window ? count - pool->window : 0;
}

// The end of the part that begins with token `low`.
INLINE int64_t end_of_part(const struct block *block, int64_t low) {
    return least_of(low / SPLIT * SPLIT + SPLIT, block->visible);
}

// Tokens whose queries make a block.
INLINE int64_t tokens_of_block(const struct pool *pool) {
    return most_of(1, COLUMNS / group_of(pool));
}

// Key heads of a block in a row: one is enough for many queries, but where there is one query, time
// goes by memory, which is read fastest in the order of addresses.
INLINE int64_t heads_of_block(const struct attention *a, int64_t num_new) {
    return num_new == 1 ? a->heads_at_once : 1;
}

// The number of blocks of a row.
INLINE int64_t blocks_of(const struct attention *a, int64_t num_new) {
    const int64_t size = tokens_of_block(&a->pool), heads = heads_of_block(a, num_new);
    return (num_new + size - 1) / size * ((a->pool.num_kv_heads + heads - 1) / heads);
}

// a way through the blocks of pieces: `left` is the next one in row r, `wanted` how many are still to
// come of a piece
struct walk {
    int64_t piece, r, left, wanted;
};

// The first block of one of equal pieces of all blocks.
INLINE int64_t first_of_piece(const struct attention *a, int64_t piece) {
    return a->num_blocks * piece / a->num_pieces;
}

// Goes on to a later piece; `walk` has ended one, or begins with piece -1.
INLINE void go_to_piece(const struct attention *a, struct walk *walk, int64_t piece) {
    walk->left += first_of_piece(a, piece) - first_of_piece(a, walk->piece + 1);
    walk->wanted = first_of_piece(a, piece + 1) - first_of_piece(a, piece);
    walk->piece = piece;
}

// Steps to the next block: by token, then by key head. Returns 0 when there is none.
static int next_block(const struct attention *a, struct walk *walk, struct block *block) {
    if (!walk->wanted) return 0;
    const struct pool *const pool = &a->pool;
    int64_t num_new;
    for (;; walk->r++) {
        num_new = a->query_starts[walk->r + 1] - a->query_starts[walk->r];
        if (walk->left < blocks_of(a, num_new)) break;
        walk->left -= blocks_of(a, num_new);
    }
    const int64_t at = a->query_starts[walk->r] * pool->num_heads * pool->head_dim;
    const int64_t size = tokens_of_block(pool), heads = heads_of_block(a, num_new);
    const int64_t groups = (pool->num_kv_heads + heads - 1) / heads;
    const int64_t context_len = a->context_lens[walk->r], behind = context_len - num_new;
    const int64_t first = walk->left / groups * size, kv_first = walk->left % groups * heads;
    const int64_t end = least_of(first + size, num_new);
    *block = (struct block){
        {a->out + at, a->q + at, a->block_tables + walk->r * a->max_blocks, num_new, context_len},
        first, end, kv_first, least_of(kv_first + heads, pool->num_kv_heads),
        first_seen(pool, behind + first + 1), behind + end};
    walk->left++;
    walk->wanted--;
    return 1;
}

// Points at the keys of the first key head of the tokens of a part, from the last multiple of 32
// before `low` on, up to the next one after `high`. Only tokens low..high are read: those before are
// replaced by the first of them, those behind by the last.
static void point_at_keys(const element **keys, const struct pool *pool, const int32_t *table,
                          int64_t low, int64_t high) {
    const int64_t start = low / BLOCK_N * BLOCK_N, behind = high - start;
    int64_t t = low - start;
    while (t < behind) {
        const int64_t block = (start + t) / pool->block_size, place = (start + t) % pool->block_size;
        const element *key =
            pool->kv_layer + table[block] * pool->block_stride + place * pool->head_dim;
        const int64_t stop = least_of(t + pool->block_size - place, behind);
        for (; t < stop; t++, key += pool->head_dim) keys[t] = key;
    }
    for (; t < round_up(behind, BLOCK_N); t++) keys[t] = keys[behind - 1];
    for (t = 0; t < low - start; t++) keys[t] = keys[low - start];
}
