// Operations on one token at a time: norms, the write to the pool with or without rotary embedding,
// activations.
#include "common.h"

// weight * x / rms(x), all [hidden]
INLINE void norm_row(element *out, const element *x, const element *weight, int64_t hidden,
                     float eps) {
    float sum = 0;
    for (int64_t i = 0; i < hidden; i++) sum += widen(x[i]) * widen(x[i]);
    float scale = 1.0f / sqrtf(sum / (float)hidden + eps);
    for (int64_t i = 0; i < hidden; i++) out[i] = narrow(widen(x[i]) * scale * widen(weight[i]));
}

// out = norm(x), [num_tokens, hidden]
EXPORT void rms_norm(element *restrict out, const element *restrict x,
                     const element *restrict weight, int64_t num_tokens, int64_t hidden,
                     float eps) {
    for (int64_t t = 0; t < num_tokens; t++)
        norm_row(out + t * hidden, x + t * hidden, weight, hidden, eps);
}

// residual += x, out = norm(residual), [num_tokens, hidden]
EXPORT void add_rms_norm(element *restrict out, element *restrict residual,
                         const element *restrict x, const element *restrict weight,
                         int64_t num_tokens, int64_t hidden, float eps) {
    for (int64_t t = 0; t < num_tokens; t++) {
        element *row = residual + t * hidden;
        const element *added = x + t * hidden;
        for (int64_t i = 0; i < hidden; i++) row[i] = narrow(widen(row[i]) + widen(added[i]));
        norm_row(out + t * hidden, row, weight, hidden, eps);
    }
}

// weight * (x - mean) / deviation + bias, all [hidden]
INLINE void layer_norm_row(element *out, const element *x, const element *weight,
                           const element *bias, int64_t hidden, float eps) {
    float sum = 0, squares = 0;
    for (int64_t i = 0; i < hidden; i++) sum += widen(x[i]);
    float mean = sum / (float)hidden;
    for (int64_t i = 0; i < hidden; i++) {
        float centered = widen(x[i]) - mean;
        squares += centered * centered;
    }
    float scale = 1.0f / sqrtf(squares / (float)hidden + eps);
    for (int64_t i = 0; i < hidden; i++)
        out[i] = narrow((widen(x[i]) - mean) * scale * widen(weight[i]) + widen(bias[i]));
}

// out = layer norm(x), [num_tokens, hidden]
EXPORT void layer_norm(element *restrict out, const element *restrict x,
                       const element *restrict weight, const element *restrict bias,
                       int64_t num_tokens, int64_t hidden, float eps) {
    for (int64_t t = 0; t < num_tokens; t++)
        layer_norm_row(out + t * hidden, x + t * hidden, weight, bias, hidden, eps);
}

// residual += x, out = layer norm(residual), [num_tokens, hidden]
EXPORT void add_layer_norm(element *restrict out, element *restrict residual,
                           const element *restrict x, const element *restrict weight,
                           const element *restrict bias, int64_t num_tokens, int64_t hidden,
                           float eps) {
    for (int64_t t = 0; t < num_tokens; t++) {
        element *row = residual + t * hidden;
        const element *added = x + t * hidden;
        for (int64_t i = 0; i < hidden; i++) row[i] = narrow(widen(row[i]) + widen(added[i]));
        layer_norm_row(out + t * hidden, row, weight, bias, hidden, eps);
    }
}

// out[t, i] = silu(gate) * up of gate_up [num_tokens, 2 * width]
EXPORT void silu_mul(element *restrict out, const element *restrict gate_up, int64_t num_tokens,
                     int64_t width) {
    for (int64_t t = 0; t < num_tokens; t++) {
        const element *gate = gate_up + t * 2 * width, *up = gate + width;
        element *row = out + t * width;
        for (int64_t i = 0; i < width; i++) {
            float g = widen(gate[i]);
            row[i] = narrow(g / (1.0f + fast_exp(-g)) * widen(up[i]));
        }
    }
}

// out = GELU(x) in its tanh form, [count]; x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x**3))
EXPORT void gelu(element *restrict out, const element *restrict x, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        float v = widen(x[i]);
        out[i] = narrow(v / (1.0f + fast_exp(-1.5957691216f * (v + 0.044715f * v * v * v))));
    }
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
