// Matrix product for bfloat16 weights that are packed once, on AMX tiles, in AVX-512 or in AVX2.
//
// The sum over k runs in one order for any number of rows, so a row's result does not depend on the
// batch. Weights are read once per call in memory order, which is what bounds small batches.
#include "products.h"
#include "team.h"

#ifdef HAS_TILES
#include <sys/syscall.h>
#include <unistd.h>

// Asks the kernel for the tile registers; 0 when this process may use them.
EXPORT int64_t tiles_init(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
}
#else
EXPORT int64_t tiles_init(void) { return -1; }
#endif

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

static void multiply_on_pairs(const void *argument, int64_t first, int64_t end) {
    multiply_blocks(argument, first, end, 0);
}

static void multiply_on_tiles(const void *argument, int64_t first, int64_t end) {
    const struct product *const product = argument;
    begin_tiles(product->m);
    multiply_blocks(product, first, end, 1);
    end_tiles();
}

// See `struct product`; rows of x and out follow each other.
EXPORT int64_t linear(struct team *team, void *out, const element *x, const element *packed,
                      const element *bias, int64_t m, int64_t n, int64_t k, int64_t is_wide,
                      int64_t use_tiles) {
    const struct product product = {out, is_wide != 0, 0, x, packed, bias, m, n, k, n, k};
    const int64_t num_blocks = (n + BLOCK_N - 1) / BLOCK_N;
    // reading the weights takes as long as multiplying them by a few rows
    const int64_t cost = 2 * k * (m < 4 ? 4 : m);
    share_rows(team, use_tiles ? multiply_on_tiles : multiply_on_pairs, &product, num_blocks, cost);
    return 0;
}

EXPORT int64_t has_pairs(void) { return 1; }
#else
EXPORT int64_t linear_pack(element *packed, const element *weight, int64_t n, int64_t k) {
    return (void)packed, (void)weight, (void)n, (void)k, -1;
}

EXPORT int64_t linear(struct team *team, void *out, const element *x, const element *packed,
                      const element *bias, int64_t m, int64_t n, int64_t k, int64_t is_wide,
                      int64_t use_tiles) {
    (void)team, (void)out, (void)x, (void)packed, (void)bias, (void)m, (void)n, (void)k;
    return (void)is_wide, (void)use_tiles, -1;
}

EXPORT int64_t has_pairs(void) { return 0; }
#endif
