// Operations on the whole of one token at a time: norms, activations.
#include "common.h"
#include "team.h"

// rows [hidden] of out, x and the residual, which is NULL where nothing is added first; weights are
// float where is_wide; bias is NULL but for layer norms
struct norm {
    element *out, *residual;
    const element *x;
    const void *weight;
    const element *bias;
    int64_t hidden;
    float eps;
    int is_wide;
};

// of a norm of one value, in vectors: it is read twice, widened and rounded
enum { VALUES_OF_A_VECTOR = 16, COST_OF_A_NORM = 8, COST_OF_A_GATE = 24 };

// residual += x, rounded; returns what is to be normed.
INLINE const element *add_row(const struct norm *n, int64_t t) {
    const element *const restrict x = n->x + t * n->hidden;
    if (!n->residual) return x;
    element *const restrict row = n->residual + t * n->hidden;
    for (int64_t i = 0; i < n->hidden; i++) row[i] = narrow(widen(row[i]) + widen(x[i]));
    return row;
}

// weight * x / rms(x), all [hidden]; is_wide is a constant, so that a loop has one kind of weight
INLINE void norm_row(element *restrict out, const element *restrict x, const void *restrict weight,
                     int is_wide, int64_t hidden, float eps) {
    float sum = 0;
    for (int64_t i = 0; i < hidden; i++) sum += widen(x[i]) * widen(x[i]);
    float scale = 1.0f / sqrtf(sum / (float)hidden + eps);
    for (int64_t i = 0; i < hidden; i++)
        out[i] = narrow(widen(x[i]) * scale * gain_at(weight, is_wide, i));
}

static void rms_norm_rows(const void *argument, int64_t first, int64_t end) {
    const struct norm *const n = argument;
    for (int64_t t = first; t < end; t++) {
        const element *const row = add_row(n, t);
        if (n->is_wide)
            norm_row(n->out + t * n->hidden, row, n->weight, 1, n->hidden, n->eps);
        else
            norm_row(n->out + t * n->hidden, row, n->weight, 0, n->hidden, n->eps);
    }
}

// weight * (x - mean) / deviation + bias, all [hidden]
INLINE void layer_norm_row(element *restrict out, const element *restrict x,
                           const element *restrict weight, const element *restrict bias,
                           int64_t hidden, float eps) {
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

static void layer_norm_rows(const void *argument, int64_t first, int64_t end) {
    const struct norm *const n = argument;
    for (int64_t t = first; t < end; t++)
        layer_norm_row(n->out + t * n->hidden, add_row(n, t), n->weight, n->bias, n->hidden,
                       n->eps);
}

static void share_norm(struct team *team, rows_work work, const struct norm *norm,
                       int64_t num_tokens) {
    share_rows(team, work, norm, num_tokens, norm->hidden * COST_OF_A_NORM / VALUES_OF_A_VECTOR);
}

// out = norm(x), [num_tokens, hidden]; weights are float where is_wide
EXPORT void rms_norm(struct team *team, element *out, const element *x, const void *weight,
                     int64_t num_tokens, int64_t hidden, float eps, int64_t is_wide) {
    const struct norm norm = {out, NULL, x, weight, NULL, hidden, eps, is_wide != 0};
    share_norm(team, rms_norm_rows, &norm, num_tokens);
}

// residual += x, out = norm(residual), [num_tokens, hidden]
EXPORT void add_rms_norm(struct team *team, element *out, element *residual, const element *x,
                         const void *weight, int64_t num_tokens, int64_t hidden, float eps,
                         int64_t is_wide) {
    const struct norm norm = {out, residual, x, weight, NULL, hidden, eps, is_wide != 0};
    share_norm(team, rms_norm_rows, &norm, num_tokens);
}

// out = layer norm(x), [num_tokens, hidden]
EXPORT void layer_norm(struct team *team, element *out, const element *x, const element *weight,
                       const element *bias, int64_t num_tokens, int64_t hidden, float eps) {
    const struct norm norm = {out, NULL, x, weight, bias, hidden, eps, 0};
    share_norm(team, layer_norm_rows, &norm, num_tokens);
}

// residual += x, out = layer norm(residual), [num_tokens, hidden]
EXPORT void add_layer_norm(struct team *team, element *out, element *residual, const element *x,
                           const element *weight, const element *bias, int64_t num_tokens,
                           int64_t hidden, float eps) {
    const struct norm norm = {out, residual, x, weight, bias, hidden, eps, 0};
    share_norm(team, layer_norm_rows, &norm, num_tokens);
}

// rows of out [width], of x [width], or of gates and what they let through [2 * width]
struct activation {
    element *out;
    const element *x;
    int64_t width;
};

static void silu_mul_rows(const void *argument, int64_t first, int64_t end) {
    const struct activation *const a = argument;
    const int64_t width = a->width;
    for (int64_t t = first; t < end; t++) {
        const element *const restrict gate = a->x + t * 2 * width, *const restrict up = gate + width;
        element *const restrict row = a->out + t * width;
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

static void gelu_rows(const void *argument, int64_t first, int64_t end) {
    const struct activation *const a = argument;
    const element *const restrict x = a->x;
    element *const restrict out = a->out;
    for (int64_t i = first * a->width; i < end * a->width; i++) out[i] = narrow(gelu_of(widen(x[i])));
}

static void gelu_mul_rows(const void *argument, int64_t first, int64_t end) {
    const struct activation *const a = argument;
    const int64_t width = a->width;
    for (int64_t t = first; t < end; t++) {
        const element *const restrict gate = a->x + t * 2 * width, *const restrict up = gate + width;
        element *const restrict row = a->out + t * width;
        for (int64_t i = 0; i < width; i++) row[i] = narrow(gelu_of(widen(gate[i])) * widen(up[i]));
    }
}

static void share_activation(struct team *team, rows_work work, const struct activation *activation,
                             int64_t num_tokens) {
    const int64_t cost = activation->width * COST_OF_A_GATE / VALUES_OF_A_VECTOR;
    share_rows(team, work, activation, num_tokens, cost);
}

// out[t, i] = silu(gate) * up of gate_up [num_tokens, 2 * width]
EXPORT void silu_mul(struct team *team, element *out, const element *gate_up, int64_t num_tokens,
                     int64_t width) {
    const struct activation activation = {out, gate_up, width};
    share_activation(team, silu_mul_rows, &activation, num_tokens);
}

// out = GELU(x), [num_tokens, width]
EXPORT void gelu(struct team *team, element *out, const element *x, int64_t num_tokens,
                 int64_t width) {
    const struct activation activation = {out, x, width};
    share_activation(team, gelu_rows, &activation, num_tokens);
}

// out[t, i] = GELU(gate) * up of gate_up [num_tokens, 2 * width]
EXPORT void gelu_mul(struct team *team, element *out, const element *gate_up, int64_t num_tokens,
                     int64_t width) {
    const struct activation activation = {out, gate_up, width};
    share_activation(team, gelu_mul_rows, &activation, num_tokens);
}
