// Operations on the whole of one token at a time: norms, activations.
#include "common.h"

// weight * x / rms(x), all [hidden]; is_wide is a constant, so that a loop has one kind of weight
INLINE void norm_row(element *out, const element *x, const void *weight, int is_wide,
                     int64_t hidden, float eps) {
    float sum = 0;
    for (int64_t i = 0; i < hidden; i++) sum += widen(x[i]) * widen(x[i]);
    float scale = 1.0f / sqrtf(sum / (float)hidden + eps);
    for (int64_t i = 0; i < hidden; i++)
        out[i] = narrow(widen(x[i]) * scale * gain_at(weight, is_wide, i));
}

// out = norm(x), [num_tokens, hidden]; weights are float where is_wide
EXPORT void rms_norm(element *restrict out, const element *restrict x, const void *restrict weight,
                     int64_t num_tokens, int64_t hidden, float eps, int64_t is_wide) {
    for (int64_t t = 0; t < num_tokens; t++)
        if (is_wide)
            norm_row(out + t * hidden, x + t * hidden, weight, 1, hidden, eps);
        else
            norm_row(out + t * hidden, x + t * hidden, weight, 0, hidden, eps);
}

// residual += x, out = norm(residual), [num_tokens, hidden]
EXPORT void add_rms_norm(element *restrict out, element *restrict residual,
                         const element *restrict x, const void *restrict weight,
                         int64_t num_tokens, int64_t hidden, float eps, int64_t is_wide) {
    for (int64_t t = 0; t < num_tokens; t++) {
        element *row = residual + t * hidden;
        const element *added = x + t * hidden;
        for (int64_t i = 0; i < hidden; i++) row[i] = narrow(widen(row[i]) + widen(added[i]));
        if (is_wide)
            norm_row(out + t * hidden, row, weight, 1, hidden, eps);
        else
            norm_row(out + t * hidden, row, weight, 0, hidden, eps);
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

// GELU in its tanh form: v * sigmoid(2 * sqrt(2 / pi) * (v + 0.044715 * v**3))
INLINE float gelu_of(float v) {
    return v / (1.0f + fast_exp(-1.5957691216f * (v + 0.044715f * v * v * v)));
}

// out = GELU(x), [count]
EXPORT void gelu(element *restrict out, const element *restrict x, int64_t count) {
    for (int64_t i = 0; i < count; i++) out[i] = narrow(gelu_of(widen(x[i])));
}

// out[t, i] = GELU(gate) * up of gate_up [num_tokens, 2 * width]
EXPORT void gelu_mul(element *restrict out, const element *restrict gate_up, int64_t num_tokens,
                     int64_t width) {
    for (int64_t t = 0; t < num_tokens; t++) {
        const element *gate = gate_up + t * 2 * width, *up = gate + width;
        element *row = out + t * width;
        for (int64_t i = 0; i < width; i++) row[i] = narrow(gelu_of(widen(gate[i])) * widen(up[i]));
    }
}
