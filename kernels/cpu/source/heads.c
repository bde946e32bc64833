// Operations on the heads of one token at a time: norms of queries and keys, rotary embedding, and
// the write to the pool.
#include "common.h"
#include "team.h"

// what heads are taken from and where they go: q is [T, num_heads, head_dim], qkv
// [T, num_heads + 2 * num_kv_heads, head_dim], kv_layer [num_blocks, 2, num_kv_heads, block_size,
// head_dim], its blocks block_stride apart. A token without a slot (-1) is not written there.
struct heads {
    element *q, *kv_layer;
    const element *qkv;
    const float *cos_sin;
    const int64_t *positions, *slots;
    int64_t num_heads, num_kv_heads, head_dim, block_size, block_stride;
    // of norms: gains [num_heads + num_kv_heads, head_dim], float where is_wide; means [T, 2] of
    // squares of queries and keys, or NULL for those of each head
    const void *gains;
    const float *means;
    float eps;
    int is_wide;
};

INLINE int64_t width_of(const struct heads *h) {
    return (h->num_heads + 2 * h->num_kv_heads) * h->head_dim;
}

// Where the first key head of a token goes, or NULL.
INLINE element *slot_of(const struct heads *h, int64_t t) {
    const int64_t slot = h->slots[t];
    if (slot < 0) return NULL;
    return h->kv_layer + slot / h->block_size * h->block_stride + slot % h->block_size * h->head_dim;
}

// Of moving a value, in sixteenths of a vector's.
enum { COST_OF_A_HEAD = 8, COST_OF_A_COPY = 2, VALUES_OF_A_VECTOR = 16 };

static void share_tokens(struct team *team, rows_work work, const struct heads *heads,
                         int64_t num_tokens, int64_t cost) {
    share_rows(team, work, heads, num_tokens, width_of(heads) * cost / VALUES_OF_A_VECTOR);
}

// Rotates pairs (i, i + half) of one head by cosines [half], sines [half].
INLINE void rotate(element *restrict out, const element *restrict head,
                   const float *restrict cos_sin, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float first = widen(head[i]), second = widen(head[i + half]);
        float c = cos_sin[i], s = cos_sin[i + half];
        out[i] = narrow(first * c - second * s);
        out[i + half] = narrow(second * c + first * s);
    }
}

static void rope_write_tokens(const void *argument, int64_t first, int64_t end) {
    const struct heads *const h = argument;
    const int64_t head_dim = h->head_dim;
    for (int64_t t = first; t < end; t++) {
        const float *angles = h->cos_sin + h->positions[t] * head_dim;
        const element *head = h->qkv + t * width_of(h);
        for (int64_t i = 0; i < h->num_heads; i++, head += head_dim)
            rotate(h->q + (t * h->num_heads + i) * head_dim, head, angles, head_dim / 2);
        element *target = slot_of(h, t);
        if (!target) continue;
        for (int64_t i = 0; i < 2 * h->num_kv_heads; i++, head += head_dim) {
            if (i < h->num_kv_heads)
                rotate(target, head, angles, head_dim / 2);
            else
                memcpy(target, head, (size_t)head_dim * sizeof(element));
            target += h->block_size * head_dim;
        }
    }
}

// Rotates queries into q and keys into their slots; copies values. See `struct heads`.
EXPORT void rope_write(struct team *team, element *q, element *kv_layer, const element *qkv,
                       const float *cos_sin, const int64_t *positions, const int64_t *slots,
                       int64_t num_tokens, int64_t num_heads, int64_t num_kv_heads,
                       int64_t head_dim, int64_t block_size, int64_t block_stride) {
    const struct heads heads = {q, kv_layer, qkv, cos_sin, positions, slots, num_heads,
                                num_kv_heads, head_dim, block_size, block_stride, NULL, NULL, 0, 0};
    share_tokens(team, rope_write_tokens, &heads, num_tokens, COST_OF_A_HEAD);
}

static void kv_write_tokens(const void *argument, int64_t first, int64_t end) {
    const struct heads *const h = argument;
    const int64_t q_size = h->num_heads * h->head_dim;
    for (int64_t t = first; t < end; t++) {
        const element *head = h->qkv + t * width_of(h);
        memcpy(h->q + t * q_size, head, (size_t)q_size * sizeof(element));
        element *const target = slot_of(h, t);
        if (!target) continue;
        for (int64_t i = 0; i < 2 * h->num_kv_heads; i++)
            memcpy(target + i * h->block_size * h->head_dim, head + q_size + i * h->head_dim,
                   (size_t)h->head_dim * sizeof(element));
    }
}

// Copies queries into q, keys and values into their slots. See `struct heads`.
EXPORT void kv_write(struct team *team, element *q, element *kv_layer, const element *qkv,
                     const int64_t *slots, int64_t num_tokens, int64_t num_heads,
                     int64_t num_kv_heads, int64_t head_dim, int64_t block_size,
                     int64_t block_stride) {
    const struct heads heads = {q, kv_layer, qkv, NULL, NULL, slots, num_heads,
                                num_kv_heads, head_dim, block_size, block_stride, NULL, NULL, 0, 0};
    share_tokens(team, kv_write_tokens, &heads, num_tokens, COST_OF_A_COPY);
}

// Norms one head by gains [head_dim], then rotates it where there are angles; is_wide is a constant.
INLINE void norm_head(element *restrict out, const element *restrict head,
                      const void *restrict gains, int is_wide, const float *angles,
                      int64_t head_dim, float mean, float eps) {
    if (mean < 0) {
        mean = 0;
        for (int64_t i = 0; i < head_dim; i++) mean += widen(head[i]) * widen(head[i]);
        mean /= (float)head_dim;
    }
    const float scale = 1.0f / sqrtf(mean + eps);
    const int64_t half = head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        float first = widen(head[i]) * scale * gain_at(gains, is_wide, i);
        float second = widen(head[i + half]) * scale * gain_at(gains, is_wide, i + half);
        float c = angles ? angles[i] : 1.0f, s = angles ? angles[i + half] : 0.0f;
        out[i] = narrow(first * c - second * s);
        out[i + half] = narrow(second * c + first * s);
    }
}

static void norm_rope_write_tokens(const void *argument, int64_t first, int64_t end) {
    const struct heads *const h = argument;
    const int64_t head_dim = h->head_dim, num_heads = h->num_heads;
    const int64_t gain_bytes = head_dim * (int64_t)(h->is_wide ? sizeof(float) : sizeof(element));
    for (int64_t t = first; t < end; t++) {
        const float *angles = h->cos_sin ? h->cos_sin + h->positions[t] * head_dim : NULL;
        const element *head = h->qkv + t * width_of(h);
        element *const slot = slot_of(h, t);
        for (int64_t i = 0; i < num_heads + 2 * h->num_kv_heads; i++, head += head_dim) {
            const int64_t kv_head = i - num_heads;
            if (kv_head >= 0 && !slot) break;
            element *target = kv_head < 0 ? h->q + (t * num_heads + i) * head_dim
                                          : slot + kv_head * h->block_size * head_dim;
            if (kv_head >= h->num_kv_heads) {
                memcpy(target, head, (size_t)head_dim * sizeof(element));
                continue;
            }
            const void *gain = (const char *)h->gains + i * gain_bytes;
            const float mean = h->means ? h->means[2 * t + (kv_head >= 0)] : -1.0f;
            if (h->is_wide)
                norm_head(target, head, gain, 1, angles, head_dim, mean, h->eps);
            else
                norm_head(target, head, gain, 0, angles, head_dim, mean, h->eps);
        }
    }
}

// Does what rope_write does with queries and keys that are normed first; cos_sin is NULL to rotate
// nothing. See `struct heads`.
EXPORT void norm_rope_write(struct team *team, element *q, element *kv_layer, const element *qkv,
                            const void *gains, const float *cos_sin, const float *means,
                            const int64_t *positions, const int64_t *slots, int64_t num_tokens,
                            int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                            int64_t block_size, int64_t block_stride, float eps, int64_t is_wide) {
    const struct heads heads = {q, kv_layer, qkv, cos_sin, positions, slots, num_heads,
                                num_kv_heads, head_dim, block_size, block_stride, gains, means, eps,
                                is_wide != 0};
    share_tokens(team, norm_rope_write_tokens, &heads, num_tokens, 2 * COST_OF_A_HEAD);
}

struct squares {
    float *means;
    const element *x;
    int64_t width, first, second;
};

static void mean_squares_rows(const void *argument, int64_t begin, int64_t end) {
    const struct squares *const s = argument;
    for (int64_t t = begin; t < end; t++) {
        const element *row = s->x + t * s->width;
        float firsts = 0, seconds = 0;
        for (int64_t i = 0; i < s->first; i++) firsts += widen(row[i]) * widen(row[i]);
        for (int64_t i = s->first; i < s->first + s->second; i++)
            seconds += widen(row[i]) * widen(row[i]);
        s->means[2 * t] = firsts / (float)s->first;
        s->means[2 * t + 1] = seconds / (float)s->second;
    }
}

// means[t] = mean squares of columns [0, first) and [first, first + second) of x
EXPORT void mean_squares(struct team *team, float *means, const element *x, int64_t num_tokens,
                         int64_t width, int64_t first, int64_t second) {
    const struct squares squares = {means, x, width, first, second};
    share_rows(team, mean_squares_rows, &squares, num_tokens, (first + second) / 4);
}
