// The tile instructions of AMX in plain C, so that what is written for them runs on any CPU with
// AVX2. Included before the kernels, with __AMX_BF16__ defined.
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

// as _tile_loadconfig takes it
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes_per_row[16];
    uint8_t rows[16];
};

static __thread struct tile_config emulated_config;
static __thread uint8_t emulated_tiles[8][16][64];

static inline void emulated_load(int tile, const void *base, long stride) {
    memset(emulated_tiles[tile], 0, sizeof emulated_tiles[tile]);
    for (int r = 0; r < emulated_config.rows[tile]; r++)
        memcpy(emulated_tiles[tile][r], (const char *)base + r * stride,
               emulated_config.bytes_per_row[tile]);
}

static inline void emulated_store(int tile, void *base, long stride) {
    for (int r = 0; r < emulated_config.rows[tile]; r++)
        memcpy((char *)base + r * stride, emulated_tiles[tile][r],
               emulated_config.bytes_per_row[tile]);
}

static inline float emulated_float(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

// sums [rows, 16] += x [rows, 16 pairs] . weights [16 pairs, 16]
static inline void emulated_product(int sums, int x, int weights) {
    float(*const out)[16] = (float(*)[16])emulated_tiles[sums];
    const uint16_t(*const a)[32] = (const uint16_t(*)[32])emulated_tiles[x];
    const uint16_t(*const b)[32] = (const uint16_t(*)[32])emulated_tiles[weights];
    for (int r = 0; r < emulated_config.rows[sums]; r++)
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 16; n++)
                for (int i = 0; i < 2; i++)
                    out[r][n] += emulated_float(a[r][2 * k + i]) * emulated_float(b[k][2 * n + i]);
}

#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_zero
#undef _tile_loadconfig
#undef _tile_release
#define _tile_loadd(tile, base, stride) emulated_load(tile, base, stride)
#define _tile_stream_loadd(tile, base, stride) emulated_load(tile, base, stride)
#define _tile_stored(tile, base, stride) emulated_store(tile, base, stride)
#define _tile_dpbf16ps(sums, x, weights) emulated_product(sums, x, weights)
#define _tile_zero(tile) memset(emulated_tiles[tile], 0, sizeof emulated_tiles[tile])
#define _tile_loadconfig(config) memcpy(&emulated_config, config, sizeof emulated_config)
// a tile that is used unconfigured has no rows
#define _tile_release() memset(&emulated_config, 0, sizeof emulated_config)
