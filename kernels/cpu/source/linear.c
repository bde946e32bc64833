// Matrix product on AMX tiles for bfloat16 weights that are packed once.
//
// The sum over k runs in one order for any number of rows, so a row's result does not depend on the
// batch. Weights are read once per call in memory order, 2 KiB a step, which is what bounds small
// batches.
#include "tiles.h"

#ifdef HAS_TILES
#include <sys/syscall.h>
#include <unistd.h>

enum {
    BLOCK_N = 32,              // outputs of one block of packed weights: two tiles
    STEP = BLOCK_N * TILE_K,   // elements of one block's step along k
    PREFETCH_STEPS = 2,        // 4 KiB ahead: 8.0 -> 11.5 GB/s on one core of an Emerald Rapids
};

// Asks the kernel for the tile registers; 0 when this process may use them.
EXPORT int64_t tiles_init(void) {
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA);
}

// Packs weight [n, k] into [ceil(n / 32), k / 32, 2 tiles, 16 pairs of k, 16 outputs, 2];
// outputs beyond n are 0. k is a multiple of 32.
EXPORT void linear_pack(element *restrict packed, const element *restrict weight, int64_t n,
                        int64_t k) {
    for (int64_t block = 0; block < n; block += BLOCK_N)
        for (int64_t start = 0; start < k; start += TILE_K)
            for (int64_t tile = block; tile < block + BLOCK_N; tile += TILE_ROWS)
                for (int64_t pair = start; pair < start + TILE_K; pair += 2)
                    for (int64_t out = tile; out < tile + TILE_ROWS; out++)
                        for (int64_t i = pair; i < pair + 2; i++)
                            *packed++ = out < n ? weight[out * k + i] : 0;
}

INLINE void prefetch_step(const element *packed) {
    for (int64_t i = 0; i < STEP; i += TILE_K) _mm_prefetch(packed + i, _MM_HINT_T0);
}

// sums [32, 32] of up to 16 (one tile) or 32 (two tiles) rows of x and one block of weights
INLINE void multiply(float *sums, const element *x, const element *packed, int64_t k, int two_tiles,
                     int prefetch) {
    const int64_t x_stride = k * (int64_t)sizeof(element);
    _tile_zero(0);
    _tile_zero(1);
    if (two_tiles) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t start = 0; start < k; start += TILE_K, packed += STEP) {
        if (prefetch) prefetch_step(packed + PREFETCH_STEPS * STEP);
        // the streaming hint keeps the rows of x in the first-level cache
        _tile_stream_loadd(6, packed, 64);
        _tile_stream_loadd(7, packed + STEP / 2, 64);
        _tile_loadd(4, x + start, x_stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (two_tiles) {
            _tile_loadd(5, x + TILE_ROWS * k + start, x_stride);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    const int64_t stride = BLOCK_N * sizeof(float);
    _tile_stored(0, sums, stride);
    _tile_stored(1, sums + 16, stride);
    if (two_tiles) {
        _tile_stored(2, sums + 16 * BLOCK_N, stride);
        _tile_stored(3, sums + 16 * BLOCK_N + 16, stride);
    }
}

INLINE __m512 widen_half(__m512i x, int half) {
    const __m256i part = half ? _mm512_extracti64x4_epi64(x, 1) : _mm512_castsi512_si256(x);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(part), 16));
}

// Rounds sums [rows, 32] into columns [start, start + 32) of out [rows, n], plus bias [n] unless
// it is NULL.
INLINE void store_block(element *out, const float *sums, const element *bias, int64_t rows,
                        int64_t n, int64_t start) {
    const int64_t left = n - start;
    const __mmask32 mask = left >= BLOCK_N ? 0xFFFFFFFF : (__mmask32)((1u << left) - 1);
    const __m512i shift =
        bias ? _mm512_maskz_loadu_epi16(mask, bias + start) : _mm512_setzero_si512();
    const __m512 shift_low = widen_half(shift, 0), shift_high = widen_half(shift, 1);
    for (int64_t row = 0; row < rows; row++, sums += BLOCK_N) {
        const __m512 low = _mm512_add_ps(_mm512_load_ps(sums), shift_low);
        const __m512 high = _mm512_add_ps(_mm512_load_ps(sums + 16), shift_high);
        _mm512_mask_storeu_epi16(out + row * n + start, mask,
                                 (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

// out [m, n] = x [m, k] @ weight.T + bias, weight packed by linear_pack, bias [n] or NULL.
// Rows go by 32; the last 32 overlap the ones before, which computes the same values twice
// instead of configuring the tiles twice.
EXPORT void linear(element *out, const element *x, const element *packed, const element *bias,
                   int64_t m, int64_t n, int64_t k) {
    _Alignas(64) float sums[32 * BLOCK_N];
    const int64_t rows = m < 32 ? m : 32;
    configure_tiles(rows < TILE_ROWS ? rows : TILE_ROWS, rows > TILE_ROWS ? rows - TILE_ROWS : 0);
    for (int64_t start = 0; start < n; start += BLOCK_N, packed += BLOCK_N * k) {
        for (int64_t done = 0; done < m; done += 32) {
            const int64_t row = done + 32 <= m ? done : m - rows;
            if (rows <= 16)
                multiply(sums, x, packed, k, 0, 1);
            else if (done == 0)
                multiply(sums, x, packed, k, 1, 1);
            else
                multiply(sums, x + row * k, packed, k, 1, 0);
            store_block(out + row * n, sums, bias, rows, n, start);
        }
    }
    _tile_release();
}

#else
EXPORT int64_t tiles_init(void) { return -1; }
EXPORT void linear_pack(element *packed, const element *weight, int64_t n, int64_t k) {
    (void)packed, (void)weight, (void)n, (void)k;
}
EXPORT void linear(element *out, const element *x, const element *packed, const element *bias,
                   int64_t m, int64_t n, int64_t k) {
    (void)out, (void)x, (void)packed, (void)bias, (void)m, (void)n, (void)k;
}
#endif
