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

// rows that make key heads of one row shared, and pieces, which are small so that threads end together
enum { ROWS_OF_A_THREAD = 4, PIECES_OF_A_THREAD = 16 };

// memory of one block: packed keys and values of one head [SPLIT, depth], queries and sums [columns,
// depth], and of the queries of one head the probs and scores [columns, SPLIT] and the sums of a part
// [columns, depth]; depth is head_dim, padded by zeros to a multiple of 32. Tokens are a part's.
struct scratch {
    operand *keys, *values, *queries, *probs;
    float *scores, *part, *sums;
    struct seen *seen;
    const element **tokens;
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
    return (size_t)(at - memory);
}

// what the queries of one key head make of a block, each of them a column
struct head {
    const struct attention *a;
    const struct block *block;
    int64_t kv_head, columns;
    operand *queries;
    float *sums;
    struct seen *seen;
};

static struct head head_of(const struct attention *a, const struct block *block, int64_t kv_head,
                           const struct scratch *s) {
    const int64_t columns = (block->end - block->first) * group_of(&a->pool);
    const int64_t at = (kv_head - block->kv_first) * columns;
    return (struct head){a, block, kv_head, columns, s->queries + at * s->depth,
                         s->sums + at * s->depth, s->seen + at};
}

// Where the query and the result of a column lie.
INLINE int64_t place_of(const struct head *head, int64_t column) {
    const struct pool *const pool = &head->a->pool;
    const int64_t group = group_of(pool), token = head->block->first + column / group;
    return (token * pool->num_heads + head->kv_head * group + column % group) * pool->head_dim;
}

// Takes the queries; nothing is seen yet.
static void begin_head(const struct head *head, int64_t depth) {
    const int64_t head_dim = head->a->pool.head_dim;
    for (int64_t c = 0; c < head->columns; c++) {
        const element *const query = head->block->row.q + place_of(head, c);
        operand *const taken = head->queries + c * depth;
        for (int64_t d = 0; d < head_dim; d++) taken[d] = operand_of(query[d]);
        for (int64_t d = head_dim; d < depth; d++) taken[d] = 0;
        head->seen[c] = (struct seen){LOWEST, 0};
    }
    memset(head->sums, 0, (size_t)(head->columns * depth) * sizeof *head->sums);
}

// Makes probabilities of the scores of tokens low..high, which begin at the last multiple of 32;
// seen [columns] is what each column sees of them.
static void make_probs(const struct head *head, struct seen *seen, int64_t low, int64_t high,
                       int64_t count, const struct scratch *s) {
    const struct pool *const pool = &head->a->pool;
    const struct row *const row = &head->block->row;
    const int64_t begin = low / BLOCK_N * BLOCK_N, group = group_of(pool);
    for (int64_t c = 0; c < head->columns; c++) {
        const int64_t end = row->context_len - row->num_new + head->block->first + c / group + 1;
        const int64_t first = most_of(low, first_seen(pool, end)) - begin;
        const int64_t last = most_of(first, least_of(high, end) - begin);
        float *const scores = s->scores + c * SPLIT;
        if (pool->softcap > 0) cap(scores, count, pool);
        seen[c] = exponentiate(s->probs + c * SPLIT, scores, least_of(first, count),
                               least_of(last, count), count, scale_of(pool));
    }
}

// Adds tokens low..high of the context, a part, to what the queries of one key head have seen.
static void attend_part(const struct head *head, int64_t low, int64_t high, struct ahead *ahead,
                        const struct scratch *s) {
    const struct pool *const pool = &head->a->pool;
    const int64_t count = round_up(high, BLOCK_N) - low / BLOCK_N * BLOCK_N, depth = s->depth;
    const int64_t columns = head->columns, head_size = pool->block_size * pool->head_dim;
    const int use_tiles = head->a->use_tiles;
    const struct tokens keys = {s->tokens, head->kv_head * head_size, ahead};
    const struct tokens values = {s->tokens, keys.shift + pool->num_kv_heads * head_size, ahead};
    const struct product scores = {s->scores, 1, 1, head->queries, s->keys, NULL, columns, count,
                                   depth, SPLIT, depth};
    const struct product sums = {s->part, 1, 1, s->probs, s->values, NULL, columns, depth, count,
                                 depth, SPLIT};
    struct seen seen[columns];
    pack_keys(s->keys, &keys, count, pool->head_dim, depth);
    multiply_blocks(&scores, 0, count / BLOCK_N, use_tiles);
    make_probs(head, seen, low, high, count, s);
    pack_values(s->values, &values, count, pool->head_dim, depth);
    multiply_blocks(&sums, 0, depth / BLOCK_N, use_tiles);
    for (int64_t c = 0; c < columns; c++)
        if (seen[c].total > 0)
            merge(head->seen + c, head->sums + c * depth, seen[c], s->part + c * depth, depth,
                  scale_of(pool));
}

// Adds the sinks, divides and rounds.
static void finish_head(const struct head *head, int64_t depth) {
    const struct pool *const pool = &head->a->pool;
    const float scale = scale_of(pool);
    for (int64_t c = 0; c < head->columns; c++) {
        const struct seen seen = head->seen[c];
        const float *const sums = head->sums + c * depth;
        element *const out = head->block->row.out + place_of(head, c);
        float factor = 1.0f / seen.total;
        if (pool->sinks) {
            // in units of the scores
            const float sink =
                pool->sinks[head->kv_head * group_of(pool) + c % group_of(pool)] / scale;
            const float top = fmaxf(seen.top, sink), before = fast_exp((seen.top - top) * scale);
            factor = before / (seen.total * before + fast_exp((sink - top) * scale));
        }
        for (int64_t d = 0; d < pool->head_dim; d++) out[d] = narrow(sums[d] * factor);
    }
}

static void attend_block(const struct attention *a, const struct block *block, struct ahead *ahead,
                         const struct scratch *s) {
    const int64_t kv_first = block->kv_first, kv_end = block->kv_end;
    for (int64_t kv_head = kv_first; kv_head < kv_end; kv_head++) {
        const struct head head = head_of(a, block, kv_head, s);
        begin_head(&head, s->depth);
    }
    if (a->use_tiles) begin_tiles((block->end - block->first) * group_of(&a->pool));
    for (int64_t low = block->seen, high; low < block->visible; low = high) {
        high = end_of_part(block, low);
        point_at_keys(s->tokens, &a->pool, block->row.table, low, high);
        for (int64_t kv_head = kv_first; kv_head < kv_end; kv_head++) {
            const struct head head = head_of(a, block, kv_head, s);
            attend_part(&head, low, high, ahead, s);
        }
    }
    if (a->use_tiles) end_tiles();
    for (int64_t kv_head = kv_first; kv_head < kv_end; kv_head++) {
        const struct head head = head_of(a, block, kv_head, s);
        finish_head(&head, s->depth);
    }
}

// Takes one of equal pieces of all blocks, and others after it.
static void attend_pieces(const void *argument, struct team *team, int64_t piece, int64_t thread) {
    const struct attention *const a = argument;
    const int64_t of_chunk = tokens_of_block(&a->pool) * group_of(&a->pool);
    const int64_t columns = most_of(of_chunk, a->heads_at_once * group_of(&a->pool));
    struct scratch s;
    char *const memory = scratch_of(team, thread, lay_out(&s, NULL, columns, a->pool.head_dim));
    if (!memory) return;
    lay_out(&s, memory, columns, a->pool.head_dim);
    struct walk walk = {.piece = NONE};
    go_to_piece(a, &walk, piece);
    struct ahead ahead;
    struct block block;
    for (begin_ahead(&ahead, a, team, &walk); piece != NONE; piece = next_piece(&ahead, &walk)) {
        if (piece != walk.piece) go_to_piece(a, &walk, piece);
        while (next_block(a, &walk, &block)) attend_block(a, &block, &ahead, &s);
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
    // heads are shared between threads where there are fewer rows than these need
    const int64_t threads = threads_of(team);
    a.heads_at_once = num_rows < ROWS_OF_A_THREAD * threads && threads > 1 ? 1 : num_kv_heads;
    for (int64_t r = 0; r < num_rows; r++)
        a.num_blocks += blocks_of(&a, query_starts[r + 1] - query_starts[r]);
    a.num_pieces = threads == 1 ? 1 : least_of(a.num_blocks, PIECES_OF_A_THREAD * threads);
    share(team, attend_pieces, &a, a.num_pieces);
    return is_short(team) ? -1 : 0;
}
