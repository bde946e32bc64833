// The softmax of attention over parts of a context, which are merged in their order.
#pragma once

#include "attention.h"

enum { LANES = 16 };  // sums that are kept apart, so that their order does not depend on a loop

#define LOWEST -1e30f  // below each score

// what one query and head has seen so far: sums of values, weighted by exp(scale * (score - top))
struct seen {
    float top, total;
};

// What scores are multiplied by once they are capped.
INLINE float scale_of(const struct pool *pool) {
    return pool->softcap > 0 ? pool->softcap : pool->scale;
}

INLINE void fill(float *values, int64_t first, int64_t end, float value) {
    for (int64_t t = first; t < end; t++) values[t] = value;
}

// tanh(scale / softcap * scores), for tanh(x) = 1 - 2 / (exp(2 x) + 1)
INLINE void cap(float *scores, int64_t count, const struct pool *pool) {
    const float twice = 2.0f * pool->scale / pool->softcap;
    for (int64_t t = 0; t < count; t++)
        scores[t] = 1.0f - 2.0f / (fast_exp(twice * scores[t]) + 1.0f);
}

// probs [count] = exp(scale * (scores - top)) from first to end and 0 elsewhere; count is a multiple
// of LANES.
static struct seen exponentiate(operand *restrict probs, float *restrict scores, int64_t first,
                                int64_t end, int64_t count, float scale) {
    float tops[LANES], totals[LANES] = {0};
    fill(tops, 0, LANES, LOWEST);
    fill(scores, 0, first, LOWEST);
    fill(scores, end, count, LOWEST);
    for (int64_t t = 0; t < count; t += LANES)
        for (int i = 0; i < LANES; i++) tops[i] = fmaxf(tops[i], scores[t + i]);
    struct seen seen = {tops[0], 0};
    for (int i = 1; i < LANES; i++) seen.top = fmaxf(seen.top, tops[i]);
    for (int64_t t = 0; t < count; t++) scores[t] = fast_exp((scores[t] - seen.top) * scale);
    fill(scores, 0, first, 0);
    fill(scores, end, count, 0);
    for (int64_t t = 0; t < count; t += LANES)
        for (int i = 0; i < LANES; i++) {
            totals[i] += scores[t + i];
            probs[t + i] = to_operand(scores[t + i]);
        }
    for (int i = 0; i < LANES; i++) seen.total += totals[i];
    return seen;
}

// Adds the next part to sums [depth] and to what was seen.
INLINE void merge(struct seen *seen, float *restrict sums, struct seen next,
                  const float *restrict part, int64_t depth, float scale) {
    const float top = fmaxf(seen->top, next.top);
    const float before = fast_exp((seen->top - top) * scale);
    const float after = fast_exp((next.top - top) * scale);
    for (int64_t d = 0; d < depth; d++) sums[d] = sums[d] * before + part[d] * after;
    *seen = (struct seen){top, seen->total * before + next.total * after};
}
