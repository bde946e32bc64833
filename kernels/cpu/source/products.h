// The product with packed operands, in the best way that there is.
#pragma once

#include "linear_pairs.h"
#include "linear_plain.h"
#include "linear_tiles.h"

// Computes blocks first..end of outputs; with use_tiles between begin_tiles and end_tiles.
INLINE void multiply_blocks(const struct product *p, int64_t first, int64_t end, int use_tiles) {
#ifdef HAS_PAIRS
    if (use_tiles)
        multiply_in_tiles(p, first, end);
    else
        multiply_in_pairs(p, first, end);
#else
    (void)use_tiles;
    multiply_plainly(p, first, end);
#endif
}
