// Matrix product for bfloat16 weights that are packed once, on AMX tiles or in AVX512-BF16.
//
// The sum over k runs in one order for any number of rows, so a row's result does not depend on the
// batch. Weights are read once per call in memory order, which is what bounds small batches.
#include "linear_pairs.h"
#include "linear_tiles.h"

#ifdef HAS_PAIRS

// Packs weight [n, k] as `struct product` wants it.
EXPORT int64_t linear_pack(element *restrict packed, const element *restrict weight, int64_t n,
                           int64_t k) {
    for (int64_t block = 0; block < n; block += BLOCK_N)
        for (int64_t start = 0; start < k; start += STEP_K)
            for (int64_t half = block; half < block + BLOCK_N; half += BLOCK_N / 2)
                for (int64_t pair = start; pair < start + STEP_K; pair += 2)
                    for (int64_t out = half; out < half + BLOCK_N / 2; out++)
                        for (int64_t i = pair; i < pair + 2; i++)
                            *packed++ = out < n ? weight[out * k + i] : 0;
    return 0;
}

// See `struct product`.
EXPORT int64_t linear(void *out, const element *x, const element *packed, const element *bias,
                      int64_t m, int64_t n, int64_t k, int64_t is_wide, int64_t use_tiles) {
    const struct product product = {out, is_wide != 0, x, packed, bias, m, n, k};
    if (use_tiles)
        multiply_in_tiles(&product);
    else
        multiply_in_pairs(&product);
    return 0;
}

EXPORT int64_t has_pairs(void) { return 1; }
#else
EXPORT int64_t linear_pack(element *packed, const element *weight, int64_t n, int64_t k) {
    return (void)packed, (void)weight, (void)n, (void)k, -1;
}

EXPORT int64_t linear(void *out, const element *x, const element *packed, const element *bias,
                      int64_t m, int64_t n, int64_t k, int64_t is_wide, int64_t use_tiles) {
    (void)out, (void)x, (void)packed, (void)bias, (void)m, (void)n, (void)k;
    return (void)is_wide, (void)use_tiles, -1;
}

EXPORT int64_t has_pairs(void) { return 0; }
#endif
