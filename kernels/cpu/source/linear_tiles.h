// Product with packed weights on AMX tiles.
#pragma once

#include "linear.h"
#include "tiles.h"

#ifdef HAS_TILES

enum { PREFETCH_STEPS = 2 };  // 4 KiB ahead: 8.0 -> 11.5 GB/s on one core of an Emerald Rapids

INLINE void prefetch_tiles(const element *packed) {
    for (int64_t i = 0; i < STEP; i += TILE_K) _mm_prefetch(packed + i, _MM_HINT_T0);
}

// sums [32, 32] of up to 16 (one tile) or 32 (two tiles) rows of x and one block of weights
INLINE void multiply(float *sums, const struct product *p, int64_t row, int64_t start, int two_tiles,
                     int prefetch) {
    const element *const x = p->x + row * p->x_stride, *packed = p->packed + start * p->k;
    const int64_t x_bytes = p->x_stride * (int64_t)sizeof(element);
    _tile_zero(0);
    _tile_zero(1);
    if (two_tiles) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t i = 0; i < p->k; i += TILE_K, packed += STEP) {
        if (prefetch) prefetch_tiles(packed + PREFETCH_STEPS * STEP);
        // the streaming hint keeps the rows of x in the first-level cache
        _tile_stream_loadd(6, packed, 64);
        _tile_stream_loadd(7, packed + STEP / 2, 64);
        _tile_loadd(4, x + i, x_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (two_tiles) {
            _tile_loadd(5, x + TILE_ROWS * p->x_stride + i, x_bytes);
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

// Stores sums [rows, 32].
INLINE void store_block(const struct product *p, const float *sums, int64_t row, int64_t rows,
                        int64_t start) {
    for (int64_t r = 0; r < rows; r++, sums += BLOCK_N)
        for (int half = 0; half < BLOCK_N; half += VECTOR)
            store_sums(p, row + r, start + half, *(const floats *)(sums + half));
}

// Before and after products of m rows by one thread.
INLINE void begin_tiles(int64_t m) {
    const int64_t rows = m < 32 ? m : 32;
    configure_tiles(rows < TILE_ROWS ? rows : TILE_ROWS, rows > TILE_ROWS ? rows - TILE_ROWS : 0);
}

INLINE void end_tiles(void) { _tile_release(); }

// Blocks first..end of outputs, once the tiles are configured for m rows. Rows go by 32; the last 32
// overlap the ones before, which computes the same values twice instead of configuring the tiles
// twice.
static void multiply_in_tiles(const struct product *p, int64_t first, int64_t end) {
    _Alignas(64) float sums[32 * BLOCK_N];
    const int64_t rows = p->m < 32 ? p->m : 32;
    for (int64_t start = first * BLOCK_N; start < end * BLOCK_N; start += BLOCK_N) {
        for (int64_t done = 0; done < p->m; done += 32) {
            const int64_t row = done + 32 <= p->m ? done : p->m - rows;
            const int prefetch = done == 0 && !p->is_cached;
            // constants, so that no loop asks
            if (rows <= 16 && prefetch)
                multiply(sums, p, row, start, 0, 1);
            else if (rows <= 16)
                multiply(sums, p, row, start, 0, 0);
            else if (prefetch)
                multiply(sums, p, row, start, 1, 1);
            else
                multiply(sums, p, row, start, 1, 0);
            store_block(p, sums, row, rows, start);
        }
    }
}

#else
INLINE void begin_tiles(int64_t m) { (void)m; }
INLINE void end_tiles(void) {}
INLINE void multiply_in_tiles(const struct product *p, int64_t first, int64_t end) {
    (void)p, (void)first, (void)end;
}
#endif
