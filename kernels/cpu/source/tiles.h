// AMX: eight tile registers of 16 rows of 64 bytes, multiplied as pairs of bfloat16 into floats.
#pragma once

#include "vectors.h"

#if defined(HAS_PAIRS) && defined(__AMX_BF16__)
#define HAS_TILES

enum {
    TILE_ROWS = 16,
    TILE_K = 32,             // bfloat16 values in a row of a tile
    TILE_SIZE = 16 * TILE_K  // bfloat16 values in a tile
};

// Tiles 0-3: sums of (rows 0-15, 16-31) x (outputs 0-15, 16-31); 4, 5: rows; 6, 7: weights.
INLINE void configure_tiles(int64_t first_rows, int64_t second_rows) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes_per_row[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    const int64_t rows[8] = {first_rows, first_rows, second_rows, second_rows,
                             first_rows, second_rows, 16, 16};
    for (int tile = 0; tile < 8; tile++) {
        config.rows[tile] = (uint8_t)rows[tile];
        config.bytes_per_row[tile] = rows[tile] ? 64 : 0;
    }
    _tile_loadconfig(&config);
}
#endif
