// Operations on the heads of one token at a time: norms of queries and keys, rotary embedding, and
// the write to the pool.
#include "common.h"

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

// Rotates queries into q [T, num_heads, head_dim] and keys into their slots; copies values.
// qkv is [T, num_heads + 2 * num_kv_heads, head_dim]; kv_layer is
// [num_blocks, 2, num_kv_heads, block_size, head_dim] with a stride between blocks.
EXPORT void rope_write(element *restrict q, element *restrict kv_layer,
                       const element *restrict qkv, const float *restrict cos_sin,
                       const int64_t *positions, const int64_t *slots, int64_t num_tokens,
                       int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                       int64_t block_size, int64_t block_stride) {
    for (int64_t t = 0; t < num_tokens; t++) {
        const float *angles = cos_sin + positions[t] * head_dim;
        const element *head = qkv + t * (num_heads + 2 * num_kv_heads) * head_dim;
        for (int64_t h = 0; h < num_heads; h++, head += head_dim)
            rotate(q + (t * num_heads + h) * head_dim, head, angles, head_dim / 2);
        if (slots[t] < 0) continue;
        element *block = kv_layer + slots[t] / block_size * block_stride;
        element *slot = block + slots[t] % block_size * head_dim;
        for (int64_t h = 0; h < 2 * num_kv_heads; h++, head += head_dim) {
            element *target = slot + h * block_size * head_dim;
            if (h < num_kv_heads)
                rotate(target, head, angles, head_dim / 2);
            else
                memcpy(target, head, (size_t)head_dim * sizeof(element));
        }
    }
}

// Copies queries into q [T, num_heads, head_dim], keys and values into their slots; see rope_write.
EXPORT void kv_write(element *restrict q, element *restrict kv_layer, const element *restrict qkv,
                     const int64_t *slots, int64_t num_tokens, int64_t num_heads,
                     int64_t num_kv_heads, int64_t head_dim, int64_t block_size,
                     int64_t block_stride) {
    int64_t q_size = num_heads * head_dim;
    for (int64_t t = 0; t < num_tokens; t++) {
        const element *head = qkv + t * (num_heads + 2 * num_kv_heads) * head_dim;
        memcpy(q + t * q_size, head, (size_t)q_size * sizeof(element));
        if (slots[t] < 0) continue;
        element *block = kv_layer + slots[t] / block_size * block_stride;
        element *slot = block + slots[t] % block_size * head_dim;
        for (int64_t h = 0; h < 2 * num_kv_heads; h++)
            memcpy(slot + h * block_size * head_dim, head + q_size + h * head_dim,
                   (size_t)head_dim * sizeof(element));
    }
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

// Does what rope_write does with queries and keys that are normed first. gains are
// [num_heads + num_kv_heads, head_dim], float where is_wide; cos_sin is null to rotate nothing;
// means [T, 2] are mean squares of queries and keys, or null for those of each head.
EXPORT void norm_rope_write(element *restrict q, element *restrict kv_layer,
                            const element *restrict qkv, const void *restrict gains,
                            const float *restrict cos_sin, const float *restrict means,
                            const int64_t *positions, const int64_t *slots, int64_t num_tokens,
                            int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                            int64_t block_size, int64_t block_stride, float eps, int64_t is_wide) {
    const int64_t gain_bytes = head_dim * (int64_t)(is_wide ? sizeof(float) : sizeof(element));
    for (int64_t t = 0; t < num_tokens; t++) {
        const float *angles = cos_sin ? cos_sin + positions[t] * head_dim : NULL;
        const element *head = qkv + t * (num_heads + 2 * num_kv_heads) * head_dim;
        element *slot = NULL;
        if (slots[t] >= 0)
            slot = kv_layer + slots[t] / block_size * block_stride +
                   slots[t] % block_size * head_dim;
        for (int64_t h = 0; h < num_heads + 2 * num_kv_heads; h++, head += head_dim) {
            const int64_t kv_head = h - num_heads;
            if (kv_head >= 0 && !slot) break;
            element *target = kv_head < 0 ? q + (t * num_heads + h) * head_dim
                                          : slot + kv_head * block_size * head_dim;
            if (kv_head >= num_kv_heads) {
                memcpy(target, head, (size_t)head_dim * sizeof(element));
                continue;
            }
            const void *gain = (const char *)gains + h * gain_bytes;
            const float mean = means ? means[2 * t + (kv_head >= 0)] : -1.0f;
            if (is_wide)
                norm_head(target, head, gain, 1, angles, head_dim, mean, eps);
            else
                norm_head(target, head, gain, 0, angles, head_dim, mean, eps);
        }
    }
}

// means[t] = mean squares of columns [0, first) and [first, first + second) of x
EXPORT void mean_squares(float *restrict means, const element *restrict x, int64_t num_tokens,
                         int64_t width, int64_t first, int64_t second) {
    for (int64_t t = 0; t < num_tokens; t++) {
        const element *row = x + t * width;
        float firsts = 0, seconds = 0;
        for (int64_t i = 0; i < first; i++) firsts += widen(row[i]) * widen(row[i]);
        for (int64_t i = first; i < first + second; i++) seconds += widen(row[i]) * widen(row[i]);
        means[2 * t] = firsts / (float)first;
        means[2 * t + 1] = seconds / (float)second;
    }
}
