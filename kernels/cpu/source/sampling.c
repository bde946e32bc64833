// Token choice over rows of logits; kernels/sampling.py describes the method and is its oracle.
#include "common.h"
#include "team.h"

// Integers in the order of the values, equal for both zeros.
#ifdef ELEMENT_BF16
typedef int16_t order;
INLINE order order_of(element x) {
    const int16_t bits = (int16_t)x;
    const int16_t key = (int16_t)(bits ^ ((bits >> 15) & 0x7FFF));
    return (order)(key + (key == -1));
}

// The bits without the sign: those of an infinity, and above them NaN.
INLINE order magnitude_of(element x) { return (order)(x & 0x7FFF); }
enum { INFINITE = 0x7F80 };
#else
typedef int32_t order;
INLINE order order_of(element x) {
    const int32_t bits = (int32_t)bits_of_float(x);
    const int32_t key = bits ^ ((bits >> 31) & 0x7FFFFFFF);
    return key + (key == -1);
}

INLINE order magnitude_of(element x) { return (order)(bits_of_float(x) & 0x7FFFFFFF); }
enum { INFINITE = 0x7F800000 };
#endif

// rows of logits [vocab] and of what decides about them
struct choices {
    int64_t *tokens;
    const element *logits;
    const float *temperature;
    const int64_t *seeds, *positions;
    int64_t vocab;
};

static void argmax_rows(const void *argument, int64_t begin, int64_t end) {
    const struct choices *const c = argument;
    const int64_t vocab = c->vocab;
    for (int64_t s = begin; s < end; s++) {
        const element *const logits = c->logits + s * vocab;
        order top = order_of(logits[0]), largest = 0;
        for (int64_t i = 0; i < vocab; i++) {
            const order key = order_of(logits[i]), magnitude = magnitude_of(logits[i]);
            top = key > top ? key : top;
            largest = magnitude > largest ? magnitude : largest;
        }
        int64_t first = 0;
        while (order_of(logits[first]) != top) first++;
        const int is_sound = largest <= INFINITE && magnitude_of(logits[first]) < INFINITE;
        c->tokens[s] = is_sound ? first : -1;
    }
}

// tokens[s] = index of the largest of logits [num_rows, vocab], the lowest if there are several; -1
// for a row that holds NaN, or whose largest is infinite.
EXPORT void argmax(struct team *team, int64_t *tokens, const element *logits, int64_t num_rows,
                   int64_t vocab) {
    const struct choices choices = {tokens, logits, NULL, NULL, NULL, vocab};
    share_rows(team, argmax_rows, &choices, num_rows, vocab / 8);
}

INLINE uint32_t mix_bits(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

// Gumbel noise of one token.
INLINE float noise(uint32_t token, uint32_t first_key, uint32_t second_key) {
    const uint32_t hashed = mix_bits(mix_bits(token ^ first_key) ^ second_key);
    float uniform = ((float)(int32_t)(hashed >> 1) + 0.5f) * 0x1p-31f;
    uniform = uniform > 1 - 0x1p-24f ? 1 - 0x1p-24f : uniform;
    // -log1p(-u): below 2**-6 by its series, since 1 - u would round the tail away
    const float series = uniform * (1 + uniform * (0.5f + uniform * (1.0f / 3 + uniform * 0.25f)));
    const float exponential = uniform < 0x1p-6f ? series : -fast_log(1 - uniform);
    return -fast_log(exponential);
}

enum { CHUNK = 1024 };

// kernels/batch.py says why
#define SMALLEST_TEMPERATURE 1e-15f

static void draw_rows(const void *argument, int64_t begin, int64_t end) {
    const struct choices *const c = argument;
    const int64_t vocab = c->vocab;
    float values[CHUNK];
    for (int64_t s = begin; s < end; s++) {
        if (c->temperature[s] < SMALLEST_TEMPERATURE || c->tokens[s] < 0) continue;
        const element *const logits = c->logits + s * vocab;
        const float scale = 1.0f / c->temperature[s];
        const uint32_t low = (uint32_t)c->seeds[s], high = (uint32_t)((uint64_t)c->seeds[s] >> 32);
        const uint32_t first = mix_bits((uint32_t)c->positions[s] ^ mix_bits(low));
        const uint32_t second = mix_bits(low ^ mix_bits(high ^ 0x9E3779B9u));
        float best = -FLT_MAX;
        for (int64_t start = 0; start < vocab; start += CHUNK) {
            const int32_t count = (int32_t)(vocab - start < CHUNK ? vocab - start : CHUNK);
            float top = -FLT_MAX;
            for (int32_t i = 0; i < count; i++) {
                const float scaled = widen(logits[start + i]) * scale;
                values[i] = scaled + noise((uint32_t)(start + i), first, second);
                top = fmaxf(top, values[i]);
            }
            if (top <= best) continue;
            best = top;
            int32_t at = 0;
            while (at < count - 1 && values[at] != top) at++;
            c->tokens[s] = start + at;
        }
    }
}

// tokens[s] = argmax of logits / temperature + noise for rows that are not greedy and have a token.
EXPORT void draw(struct team *team, int64_t *tokens, const element *logits,
                 const float *temperature, const int64_t *seeds, const int64_t *positions,
                 int64_t num_rows, int64_t vocab) {
    const struct choices choices = {tokens, logits, temperature, seeds, positions, vocab};
    share_rows(team, draw_rows, &choices, num_rows, 4 * vocab);
}
